// A snapshot is whole, or the damage is found, whatever happens to the file and to its save. A
// resumed run ends on the bits of an unbroken run.
#include "common/training/snapshot.hpp"

#include <sys/wait.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <future>
#include <iostream>
#include <set>
#include <sstream>

#include "common/base/exit_codes.hpp"
#include "common/base/files.hpp"
#include "common/data/data_loader.hpp"
#include "common/data/dataset.hpp"
#include "common/data/tensor_file.hpp"
#include "common/launch/spawn.hpp"
#include "common/model/mlp.hpp"
#include "common/parallel/default_group.hpp"
#include "common/training/optimizer.hpp"
#include "common/training/stop_request.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/differing_options.hpp"
#include "tests/support/ranks_by_hand.hpp"

extern "C" {
extern std::atomic<int> ddp_fault_calls;  // support/faulty_calls.cpp
}

namespace {

namespace fs = std::filesystem;
using ddp::read_text;

void write(const fs::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

/// Flips a bit of the last number.
void damage(const fs::path& path) {
  std::string bytes = read_text(path);
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  write(path, bytes);
}

/// Text on stderr while `body` runs.
std::string stderr_of(const std::function<void()>& body) {
  std::ostringstream said;
  std::streambuf* const before = std::cerr.rdbuf(said.rdbuf());
  body();
  std::cerr.rdbuf(before);
  return said.str();
}

ddp::Options options_in(const ddp::ScratchFolder& folder, const std::string& optimizer = "sgd") {
  ddp::Options options;
  options.program = "snapshot_test";
  options.snapshot = folder.path() + "/s";
  options.resume = "auto";
  options.optimizer = optimizer;
  options.layers = {2, 3, 1};
  options.dataset_size = 20;
  options.batch_size = 8;
  return options;
}

/// Training within this process, epoch by epoch.
class Training {
 public:
  /// @param weights_seed seed of the first weights, which the snapshot must replace
  explicit Training(const ddp::Options& options, uint64_t weights_seed = 1)
      : options_(options), dataset_(ddp::load_dataset(options)) {
    ddp::resolve_options(options_, 1);
    torch::manual_seed(weights_seed);
    model_ = ddp::Mlp(dataset_.layers);
    optimizer_ = ddp::make_optimizer(model_->parameters(), options);
  }

  void train(int64_t first_epoch, int64_t end_epoch) {
    ddp::RandomSampler sampler(dataset_.train.size(), options_.seed);
    ddp::DataLoader loader(dataset_.train, sampler, options_.batch_size);
    for (int64_t epoch = first_epoch; epoch < end_epoch; ++epoch) {
      sampler.set_epoch(epoch);
      for (const ddp::Batch& batch : loader) {
        optimizer_->zero_grad();
        ddp::loss(model_->forward(batch.input), batch.target).backward();
        optimizer_->step();
      }
    }
  }
  /// Saves a snapshot in which all weights and moments are `epochs_done`.
  void save_filled(int64_t epochs_done) {
    const torch::NoGradGuard no_grad;
    for (const torch::Tensor& tensor : tensors()) {
      tensor.fill_(static_cast<double>(epochs_done));
    }
    save(epochs_done);
  }
  /// Loads a snapshot of save_filled().
  /// @return epochs done, -1 if the snapshot is refused, -2 if it has other values
  int64_t load_filled() {
    int64_t epochs_done = -1;
    stderr_of([&] { message_of<ddp::Error>([&] { epochs_done = load(); }); });
    for (const torch::Tensor& tensor : tensors()) {
      if (epochs_done > 0 && !(tensor == epochs_done).all().item<bool>()) {
        return -2;
      }
    }
    return epochs_done;
  }
  /// Message of a load that is refused with exit code 3; empty if it is not refused.
  std::string refusal() {
    try {
      load();
    } catch (const ddp::Error& error) {
      return error.code() == ddp::ExitCode::kSnapshotRefused ? error.what() : "";
    }
    return "";
  }
  void save(int64_t epochs_done) {
    ddp::save_snapshot(options_, epochs_done, *model_, *optimizer_);
  }
  int64_t load() { return ddp::load_snapshot(options_, *model_, *optimizer_); }
  /// Weights and the optimizer's state.
  std::vector<torch::Tensor> tensors() const {
    std::vector<torch::Tensor> all = model_->parameters();
    for (const auto& [name, tensor] : ddp::named_state(*optimizer_)) {
      all.push_back(tensor);
    }
    return all;
  }

 private:
  ddp::Options options_;
  ddp::Dataset dataset_;
  ddp::Mlp model_{nullptr};
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
};

std::string refusal(const ddp::Options& options) {
  return Training(options).refusal();
}

}  // namespace

TEST_CASE("every flipped bit and every truncation is found") {
  const ddp::ScratchFolder folder("ddp-snapshot");
  const ddp::Options options = options_in(folder);
  Training training(options);
  training.save(7);
  const std::string good = read_text(options.snapshot);
  REQUIRE(training.load() == 7);
  const auto is_found = [&](const std::string& bytes) {
    write(options.snapshot, bytes);
    return !training.refusal().empty();
  };
  int silent = 0;
  for (size_t at = 0; at < good.size(); ++at) {
    silent += is_found(good.substr(0, at)) ? 0 : 1;
    for (int bit = 0; bit < 8; ++bit) {
      std::string flipped = good;
      flipped[at] = static_cast<char>(flipped[at] ^ (1 << bit));
      silent += is_found(flipped) ? 0 : 1;
    }
  }
  CHECK(silent == 0);
  CHECK(is_found(good + '\0'));
  CHECK_FALSE(is_found(good));
}

TEST_CASE("resumed at any epoch, a run ends on the bits of an unbroken one") {
  constexpr int64_t kEpochs = 4;
  for (const auto& [optimizer, state] : {std::pair("sgd", ""),
                                         {"momentum", "momentum_buffer"},
                                         {"adam", "step exp_avg exp_avg_sq"},
                                         {"adamw", "step exp_avg exp_avg_sq"}}) {
    // The names of Python's state_dict().
    std::set<std::string> expected_names = {"layer0.weight", "layer0.bias", "layer1.weight",
                                            "layer1.bias"};
    for (const std::string& name : words(state)) {
      for (int parameter = 0; parameter < 4; ++parameter) {
        expected_names.insert(fmt::format("optimizer.state.{}.{}", parameter, name));
      }
    }
    for (int64_t stop = 1; stop < kEpochs; ++stop) {
      const ddp::ScratchFolder folder("ddp-snapshot");
      const ddp::Options options = options_in(folder, optimizer);
      Training unbroken(options);
      CHECK(unbroken.load() == 0);  // no snapshot yet
      unbroken.train(0, stop);
      unbroken.save(stop);
      unbroken.train(stop, kEpochs);
      Training resumed(options, 2);
      REQUIRE(resumed.load() == stop);
      resumed.train(stop, kEpochs);
      INFO(optimizer << ", stopped after " << stop << " epochs");
      const auto equal = [](const auto& a, const auto& b) { return a.equal(b); };
      CHECK(std::ranges::equal(resumed.tensors(), unbroken.tensors(), equal));
      std::set<std::string> names;
      const std::string file = read_text(options.snapshot);
      for (const auto& [name, tensor] : ddp::parse_tensor_file("", file).tensors) {
        names.insert(name);
      }
      CHECK(names == expected_names);
    }
  }
}

TEST_CASE("the snapshot before is taken if the newest is damaged or gone") {
  const ddp::ScratchFolder folder("ddp-snapshot");
  const ddp::Options options = options_in(folder, "momentum");
  Training training(options);
  training.save_filled(1);
  training.save_filled(2);
  CHECK(training.load_filled() == 2);
  damage(options.snapshot);
  const std::string said = stderr_of([&] { CHECK(training.load() == 1); });
  CHECK(contains(said, "snapshot " + options.snapshot));
  CHECK(contains(said, "going on from " + options.snapshot + ".prev\n"));
  CHECK(training.load_filled() == 1);
  damage(options.snapshot + ".prev");
  CHECK(contains(refusal(options), "snapshot " + options.snapshot + ": "));
  CHECK(contains(refusal(options), "; snapshot " + options.snapshot + ".prev: "));
  training.save_filled(3);
  training.save_filled(4);
  fs::remove(options.snapshot);
  CHECK(training.load_filled() == 3);
}

TEST_CASE("another run's snapshot is refused, and its own predecessor not taken") {
  const ddp::ScratchFolder folder("ddp-snapshot");
  ddp::Mlp model(std::vector<int64_t>{2, 1});
  ddp::Options defaults;
  ddp::resolve_options(defaults, 1);
  for (const ddp::Setting& setting : defaults.settings) {
    if (setting.name == "--batch-size") {
      continue;  // its text is part of --global-batch's
    }
    auto [options, other] = differing_options(setting.name, 1);
    options.snapshot = folder.path() + "/s";
    options.resume = other.resume = "auto";
    if (setting.name == "--optimizer") {
      options.learning_rate = other.learning_rate = 0.1;  // else "lr" differs, too
    }
    static_cast<ddp::IdentityOptions&>(other) = {};  // this process is alone
    other.snapshot = setting.name == "--snapshot" ? other.snapshot : options.snapshot;
    ddp::resolve_options(options, 1);
    ddp::resolve_options(other, 1);
    ddp::save_snapshot(options, 1, *model);
    const auto refused = message_of<ddp::Error>([&] { ddp::load_snapshot(other, *model); });
    INFO(setting.name << ": " << refused);
    CHECK(refused.empty() != setting.result);
    CHECK(contains(refused, "it has " + setting.name.substr(2)) == setting.result);
    CHECK(ddp::load_snapshot(options, *model) == 1);
  }
  const ddp::Options options = options_in(folder, "adam");
  Training(options).save(1);
  ddp::Options other = options;
  other.seed = 7;
  Training(other).save(2);
  CHECK(contains(refusal(options), "has seed"));
  // A batch size that is found by trying may differ, a given --global-batch may not.
  for (const bool given : {false, true}) {
    for (const int64_t batch : {8, 16}) {
      other.find_batch = true;
      other.batch_size = batch;
      other.global_batch = given ? std::optional(batch) : std::nullopt;
      if (batch == 8) {
        Training(other).save(3);
      }
      CHECK(contains(refusal(other), "has global-batch") == (given && batch == 16));
    }
  }
  // A data file may lie in another folder, and --dataset-size is not its own.
  for (const std::string place : {"a", "b"}) {
    fs::create_directory(folder.path() + "/" + place);
    other.dataset = folder.path() + "/" + place + "/digits.safetensors";
    fs::copy(DDP_SOURCE_DIR "/data/digits.safetensors", other.dataset);
    ++other.dataset_size;
    if (place == "a") {
      Training(other).save(4);
    }
    CHECK(refusal(other).empty());
  }
}

TEST_CASE("a snapshot of an earlier version loads") {
  const ddp::ScratchFolder folder("ddp-snapshot");
  ddp::Options options = options_in(folder, "momentum");
  fs::copy(DDP_SOURCE_DIR "/tests/data/old_snapshot.safetensors", options.snapshot);
  options.layers = {20, 1};
  options.dataset_size = 40;
  options.learning_rate = 0.05;
  Training training(options);
  CHECK(training.load() == 1);
  CHECK(training.tensors().size() == 4);
  CHECK(training.tensors().front().sum().item<float>() == Approx(0.65972));
  options.learning_rate = 0.5;
  CHECK(contains(refusal(options), "it has lr \"0.05\", expected 0.5"));
  // An option that the earlier version had not is at its default.
  options.learning_rate = 0.05;
  const std::string bytes = read_text(options.snapshot);
  ddp::TensorFile file = ddp::parse_tensor_file("", bytes);
  file.metadata.erase("seed");
  ddp::write_tensor_file(options.snapshot, file);
  CHECK(Training(options).load() == 1);
  options.seed = 7;
  CHECK(contains(refusal(options), "it has seed \"\", expected 7"));
}

TEST_CASE("a whole file that does not fit is refused by what it has") {
  const ddp::ScratchFolder folder("ddp-snapshot");
  const ddp::Options options = options_in(folder, "adam");
  Training training(options);
  training.train(0, 1);
  training.save(1);
  const std::string bytes = read_text(options.snapshot);
  using Change = std::function<void(ddp::TensorFile&)>;
  const auto text = [](const char* name, const char* value) -> Change {
    return [=](auto& file) { file.metadata[name] = value; };
  };
  const auto tensor = [](const char* name, const torch::Tensor& value) -> Change {
    return [=](auto& file) {
      std::erase_if(file.tensors, [&](const auto& item) { return item.first == name; });
      file.tensors.emplace_back(name, value);
    };
  };
  for (const auto& [expected, change] : {
           std::pair("has format \"ddp-snapshot-1\", expected", text("format", "ddp-snapshot-1")),
           {"has format \"ddp-snapshot-20\", expected", text("format", "ddp-snapshot-20")},
           {"has format \"pt\", expected", text("format", "pt")},
           {"has format \"\", expected", [](auto& file) { file.metadata.erase("format"); }},
           {"does not say how far it got", text("epochs_done", "0")},
           {"does not say how far it got", text("epochs_done", "1x")},
           {"holds no layer0.bias of the", tensor("layer0.bias", torch::ones({3}, torch::kHalf))},
           {"holds no layer0.bias of the", tensor("layer0.bias", torch::ones({3, 1}))},
           {"holds \"more\", which the model", tensor("more", torch::ones({3}))},
           {"state.1.exp_avg of sizes [3]", tensor("optimizer.state.1.exp_avg", torch::ones({1}))},
           {"tensors of the optimizer's", tensor("optimizer.state.4.exp_avg", torch::ones({3}))},
       }) {
    ddp::TensorFile file = ddp::parse_tensor_file("", bytes);
    change(file);
    fs::remove(options.snapshot);
    ddp::write_tensor_file(options.snapshot, file);
    CHECK_THAT(refusal(options), ContainsSubstring(expected) && !ContainsSubstring(".prev"));
  }
  write(options.snapshot, bytes);
  ddp::Mlp model(options.layers);
  ddp::Options resolved = options;
  ddp::resolve_options(resolved, 1);
  CHECK_THROWS_WITH(ddp::load_snapshot(resolved, *model),
                    ContainsSubstring("holds \"optimizer.state.0.exp_avg\", which"));
}

TEST_CASE("an optimizer's state is copied: every group's, AMSGrad's, and none where none is") {
  const auto make = [] {
    const auto weight = [] { return torch::ones({2}, torch::requires_grad()); };
    using Group = torch::optim::OptimizerParamGroup;
    return torch::optim::Adam(std::vector{Group({weight()}), Group({weight(), weight()})},
                              torch::optim::AdamOptions(0.1).amsgrad(true));
  };
  torch::optim::Adam first = make();
  const auto step = [&first] {
    for (const auto& group : first.param_groups()) {
      group.params().back().mutable_grad() = torch::full({2}, 3.0);
    }
    first.step();
    return ddp::named_state(first);
  };
  const ddp::NamedTensors state = step();
  torch::optim::Adam second = make();
  ddp::load_named_state(second, state);
  ddp::NamedTensors expected = state;
  for (auto& [name, value] : expected) {
    value = value.clone();
  }
  step();  // of the first only
  CHECK(expected.size() == 2 * 4);
  CHECK(std::ranges::equal(ddp::named_state(second), expected, [](const auto& a, const auto& b) {
    return a.first == b.first && a.second.equal(b.second);
  }));
}

TEST_CASE("optimizers are torch::optim's, with the settings that are promised") {
  const auto settings = [](const std::string& name, std::optional<double> rate = {}) {
    ddp::Options options;
    options.optimizer = name;
    options.learning_rate = rate;
    return ddp::make_optimizer({torch::ones({1})}, options)->defaults().clone();
  };
  for (const auto& [name, rate] : ddp::kOptimizers) {
    CHECK(settings(name)->get_lr() == rate);
  }
  CHECK(dynamic_cast<torch::optim::SGDOptions&>(*settings("momentum")).momentum() == 0.9);
  CHECK((settings("momentum")->get_lr() == 0.02 && settings("sgd")->get_lr() == 0.1));
  CHECK(dynamic_cast<torch::optim::AdamOptions&>(*settings("adam")).lr() == 0.001);
  CHECK(dynamic_cast<torch::optim::AdamWOptions&>(*settings("adamw")).lr() == 0.001);
  CHECK(settings("adam", 0.5)->get_lr() + settings("adamw", 0.25)->get_lr() == 0.75);
}

TEST_CASE("file systems that sync no files, or no folders, have snapshots") {
  for (const int refusal : {EPERM, EINVAL, ENOSYS, EOPNOTSUPP}) {
    for (const char* const at : {"1", "2"}) {
      const ddp::ScratchFolder folder("ddp-snapshot");
      Training training(options_in(folder, "momentum"));
      ddp_fault_calls = 0;
      setenv("DDP_FAULT_FOLDER", folder.path().c_str(), 1);
      setenv("DDP_FAULT_CALL", "fsync", 1);
      setenv("DDP_FAULT_AT", at, 1);
      setenv("DDP_FAULT", std::to_string(refusal).c_str(), 1);
      CHECK_NOTHROW(training.save_filled(1));
      unsetenv("DDP_FAULT");
      unsetenv("DDP_FAULT_CALL");
      CHECK(training.load_filled() == 1);
      CHECK(ddp_fault_calls == 2);
    }
  }
}

TEST_CASE("a fault at any call of a save leaves the old or the new snapshot") {
  constexpr int kSaved = 10;
  constexpr int kReported = 11;
  constexpr int kNotReached = 12;
  for (const std::string& fault : std::vector<std::string>{
           "kill", "short", std::to_string(ENOSPC), std::to_string(EIO), std::to_string(EINTR)}) {
    for (int at = 1, code = 0; code != kNotReached; ++at) {
      const ddp::ScratchFolder folder("ddp-snapshot");
      const ddp::Options options = options_in(folder, "momentum");
      Training training(options);
      training.save_filled(1);
      training.save_filled(2);
      const pid_t child = fork();
      if (child == 0) {
        setenv("DDP_FAULT_FOLDER", folder.path().c_str(), 1);
        setenv("DDP_FAULT_AT", std::to_string(at).c_str(), 1);
        setenv("DDP_FAULT", fault.c_str(), 1);
        try {
          training.save_filled(3);
          code = ddp_fault_calls < at ? kNotReached : kSaved;
        } catch (const ddp::Error& error) {
          const bool is_clear = error.code() == ddp::ExitCode::kTrainingFailed &&
                                contains(error.what(), options.snapshot + " cannot be written: " +
                                                           std::strerror(std::atoi(fault.c_str())));
          code = is_clear ? kReported : 1;
        }
        _exit(code);
      }
      int status = 0;
      REQUIRE(waitpid(child, &status, 0) == child);
      code = WIFEXITED(status) ? WEXITSTATUS(status) : 0;
      INFO("fault " << fault << " at call " << at << ": status " << status);
      const int64_t left = training.load_filled();
      if (WIFSIGNALED(status)) {
        CHECK((fault == "kill" && (left == 2 || left == 3)));
      } else if (code == kReported) {
        CHECK((fault != "short" && (left == 2 || left == 3)));  // 3: after the last call
      } else {
        CHECK((code == kSaved || code == kNotReached));
        CHECK(left == 3);
      }
      // The next save works as usual.
      training.save_filled(4);
      CHECK(training.load_filled() == 4);
      CHECK((code != kNotReached || at > 5));
    }
  }
}

TEST_CASE("what each value of --resume does with a snapshot that is there") {
  const ddp::ScratchFolder folder("ddp-snapshot");
  ddp::Options options = options_in(folder);
  Training(options).save(5);
  setenv("SLURM_JOB_ID", "1", 1);
  for (const char* const restarts : {"0", "1"}) {
    setenv("SLURM_RESTART_COUNT", restarts, 1);
    for (const auto& [resume, expected] :
         {std::pair("restart", 5 * std::atoi(restarts)), {"auto", 5}, {"never", 0}}) {
      options.resume = resume;
      auto epochs_done = std::async(std::launch::async, [&options] {
        ddp::thread_is_a_rank = true;  // so that it reads the environment, once
        return Training(options).load();
      });
      CHECK(epochs_done.get() == expected);
    }
  }
  unsetenv("SLURM_JOB_ID");
  unsetenv("SLURM_RESTART_COUNT");
}

TEST_CASE("a rank of the next test", "[.][rank]") {
  std::_Exit(ddp::run_rank([](const ddp::LaunchEnvironment& launch) {
    ddp::init_process_group(launch, torch::kCPU, {.backend = "gloo", .timeout_seconds = 20});
    ddp::Options options;
    options.snapshot = std::getenv("SNAPSHOT");
    options.resume = "auto";
    ddp::resolve_options(options, launch.world_size);
    sleep(launch.rank == 1 ? 1 : 0);  // reads rank 0's answer late
    torch::nn::Sequential model(torch::nn::BatchNorm1d(2));
    if (ddp::load_snapshot(options, *model) > 0) {
      std::cerr << "loaded " << model->buffers()[0][1].item<int>() << "\n";
    }
    if (launch.rank == 1) {
      raise(SIGUSR1);
    }
    const bool stops = ddp::stop_requested();
    ddp::destroy_process_group();
    TORCH_CHECK(stops, "goes on");
  }));
}

TEST_CASE("rank 0's snapshot, a refusal, also of the file system, and a stop reach all ranks") {
  for (const auto& [snapshot, code, says] : {std::tuple(std::string("kept"), 0, "loaded 7\n"),
                                             {"damaged", 3, "snapshot damaged: got 7 bytes"},
                                             {std::string(300, 'x'), 3, "File name too long"},
                                             {"gone", 0, "loaded 7\n"},
                                             {"none", 0, ""}}) {
    RanksByHand ranks;
    const std::string folder = ranks.folder.path() + "/";
    write(folder + "damaged", "damaged");
    ddp::Options options;
    options.snapshot = folder + "kept";
    options.batch_size *= 2;  // of both ranks
    ddp::resolve_options(options, 1);
    torch::nn::Sequential model(torch::nn::BatchNorm1d(2));
    for (const int value : {7, 8}) {
      model->buffers()[0].fill_(value);
      ddp::save_snapshot(options, 1, *model);
    }
    damage(options.snapshot);
    fs::copy(options.snapshot + ".prev", folder + "gone.prev");
    ranks.start_both(own_cases("[rank]"), "SNAPSHOT=" + snapshot);
    ranks.check_ends(code, says);
  }
}
