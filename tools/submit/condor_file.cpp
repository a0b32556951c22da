#include <sstream>

#include "common/base/exit_codes.hpp"
#include "tools/submit/quoting.hpp"
#include "tools/submit/submission_file.hpp"

namespace ddp::submit {
namespace {

std::int64_t share(std::int64_t whole, int parts) {
  return (whole + parts - 1) / parts;
}

/// By what the processes of one start find each other: a job that is started again has the same
/// cluster id, and in its folder the address of the last start.
std::string job_id(const JobRequest& job) {
  return std::string("DDP_JOB_ID=$(ClusterId)") + (job.several ? ".$$([NumJobStarts])" : "");
}

void write_requests(std::ostringstream& file, const JobRequest& job, int processes_per_slot_node) {
  const Resources& resources = job.resources;
  // At least one per process was checked; a remainder would ask for more than the node was to give.
  file << "request_cpus = " << resources.cpus.value_or(1) / processes_per_slot_node << '\n';
  if (resources.memory_mb) {
    file << "request_memory = " << share(*resources.memory_mb, processes_per_slot_node) << '\n';
  }
  if (resources.gpus > 0) {
    file << "request_gpus = " << resources.gpus / processes_per_slot_node << '\n';
    if (resources.gpu_memory_mb) {
      file << "gpus_minimum_memory = " << *resources.gpu_memory_mb << '\n';
    }
  }
}

}  // namespace

std::string condor_file(const JobRequest& job, const std::string& out_dir, int attempt,
                        const std::string& token) {
  const Resources& resources = job.resources;
  const JobFiles files = job_files(job, attempt);
  const int again = static_cast<int>(ExitCode::kRunAgain);
  const bool transfers = !resources.transfer_files.empty();
  const std::string per_node = job.several ? ".$(Node)" : "";

  std::ostringstream file;
  file << "# Job " << job.index << ", made by submit.\n";
  if (job.several) {
    file << "# " << resources.nodes << " nodes with " << job.processes_per_node
         << " processes each. A process sees its slot only, so each has a slot of its own.\n"
         << "universe = parallel\n"
         << "machine_count = " << resources.nodes * job.processes_per_node << '\n';
  } else {
    file << "universe = vanilla\n";
  }
  file << "executable = " << condor_path("script_path", job.command.front()) << '\n'
       << "transfer_executable = " << (transfers ? "True" : "False") << '\n'
       << "arguments = " << condor_arguments({job.command.begin() + 1, job.command.end()}) << '\n'
       << "environment = " << condor_environment({job_id(job)}) << '\n'
       << "initialdir = " << condor_path("out_dir", out_dir + "/" + job.folder) << '\n'
       << "output = " << files.out << per_node << '\n'
       << "error = " << files.err << per_node << '\n'
       << "log = " << files.log << '\n';
  if (transfers) {
    std::string list;
    for (const std::string& path : resources.transfer_files) {
      list += (list.empty() ? "" : ",") + condor_path("transfer_files", path);
    }
    file << "should_transfer_files = YES\n"
         << "when_to_transfer_output = ON_EXIT_OR_EVICT\n"
         << "transfer_input_files = " << list << '\n';
  } else {
    file << "# Program, data and folder are those of this machine: only nodes that see them suit.\n"
         << "should_transfer_files = NO\n";
  }
  write_requests(file, job, job.several ? job.processes_per_node : 1);
  if (job.several) {
    file << "# Without this the end of the first process ends the others where they are.\n"
         << "+ParallelShutdownPolicy = \"WAIT_FOR_ALL\"\n"
         << "# Stopped with a good snapshot: back into the queue.\n"
         << "on_exit_remove = ExitCode =!= " << again << '\n';
  } else {
    file << "# Stopped with a good snapshot: started again.\n"
         << "checkpoint_exit_code = " << again << '\n';
  }
  if (resources.time_s) {
    file << "allowed_execute_duration = " << *resources.time_s << '\n';
  }
  if (!resources.account.empty()) {
    file << "accounting_group = " << resources.account << '\n';
  }
  if (resources.bid) {
    file << "+Bid = " << *resources.bid << '\n';
  }
  file << "batch_name = " << job.name << '\n'
       << "+SubmitToken = " << classad_string(token) << '\n'
       << "notification = Never\n"
       << "queue\n";
  return file.str();
}

}  // namespace ddp::submit
