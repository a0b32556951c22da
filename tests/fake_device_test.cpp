// What can be tested of GPUs without one, on Note [The fake device]: a wrong device, a stream that
// does not wait, a staging buffer that is used too early.
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/StreamGuard.h>
#include <torch/library.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <algorithm>
#include <array>
#include <barrier>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "common/backends/host_backend.hpp"
#include "common/backends/shm/shm_communicator.hpp"
#include "common/backends/store_exchange.hpp"
#include "common/base/exit_codes.hpp"
#include "common/base/scratch_folder.hpp"
#include "common/parallel/data_parallel.hpp"
#include "common/parallel/mirrored.hpp"
#include "common/training/batch_finder.hpp"
#include "common/training/step_timer.hpp"
#include "common/training/training.hpp"
#include "tests/catch.hpp"
#include "tests/support/fake_device.hpp"
#include "tests/support/train_on_ranks.hpp"

namespace {

using ddp::GpuTensors;
using ddp::Options;
using ddp::test::fake_device;
using ddp::test::FakeGraphStream;
using ddp::test::set_free_memory;
using ddp::test::StreamOrder;

constexpr int kRanks = 3;
constexpr auto kBothOrders = {StreamOrder::kOthersLast, StreamOrder::kOthersFirst};

c10::Stream current_stream(const torch::Device& device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

/// Another than the current one.
c10::Stream new_stream(const torch::Device& device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device);
}

torch::Tensor pinned(const torch::Tensor& tensor) {
  torch::Tensor copy = torch::empty_like(tensor, torch::TensorOptions().pinned_memory(true));
  return copy.copy_(tensor);
}

/// An epoch's last step is smaller. Rows have 64 bytes, so that a part of a batch is aligned alike
/// whether or not it is a copy: matrix products' last bits depend on that.
Options small_options() {
  Options options;
  options.program = "fake_device_test";
  options.layers = {16, 16, 16};
  options.dataset_size = 160;
  options.batch_per_rank = 10;
  options.optimizer = "momentum";
  options.total_epochs = 2;
  options.bucket_mib = 1e-4;
  options.quiet = true;
  return options;
}

/// A model of a user's, whose forward makes tensors on the current device.
struct OnesModuleImpl : torch::nn::Cloneable<OnesModuleImpl> {
  OnesModuleImpl() { reset(); }
  void reset() override { weight = register_parameter("weight", torch::ones({1})); }
  torch::Tensor forward(const torch::Tensor& input) const {
    return input * weight + torch::ones({1}, torch::Device(input.device().type()));
  }
  torch::Tensor weight;
};
TORCH_MODULE(OnesModule);

/// Rank r's, with a current stream of its own: the default ones would hide much.
torch::Device enter_device(int rank) {
  const torch::Device device = fake_device(rank + 1);
  c10::impl::VirtualGuardImpl(device.type()).setDevice(device);
  c10::impl::VirtualGuardImpl(device.type()).exchangeStream(new_stream(device));
  return device;
}

/// As `--backend mpi`: what is on a device goes through the host, or to a communicator that reads
/// the device's memory itself.
ddp::test::Connect by_host(bool on_cpu, GpuTensors gpu_tensors = GpuTensors::kStaged) {
  return [=](int rank, const c10::intrusive_ptr<c10d::Store>& store) {
    const torch::Device device = on_cpu ? torch::Device(torch::kCPU) : enter_device(rank);
    const std::chrono::seconds timeout(30);
    auto communicator = ddp::shm::Communicator::connect(
        {.rank = rank, .world_size = kRanks, .timeout = timeout},
        ddp::exchange_through(store, "mpi", {rank, kRanks, device, timeout, "127.0.0.1"}));
    return ddp::test::Connection{
        "mpi", device, ddp::make_host_backend("mpi", std::move(communicator), gpu_tensors)};
  };
}

/// Where ranks that are threads show each other their tensors, and since when those are ready.
struct Meeting {
  std::barrier<> barrier{kRanks};
  std::array<torch::Tensor, kRanks> tensors;
  std::array<std::array<std::shared_ptr<c10::Event>, kRanks>, 2> ready;
};

/// As NCCL: collectives run on a stream of their own, which waits for the caller's, and only wait()
/// makes the caller's wait for them.
class StreamBackend : public c10d::Backend {
 public:
  StreamBackend(int rank, const torch::Device& device, std::shared_ptr<Meeting> meeting)
      : c10d::Backend(rank, kRanks), stream_(new_stream(device)), meeting_(std::move(meeting)) {}
  const std::string getBackendName() const override { return "streams"; }

  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>& tensors,
                                           const c10d::AllreduceOptions&) override {
    return run(tensors.front(), [](const std::vector<torch::Tensor>& all) {
      torch::Tensor sum = all[0].to(torch::kFloat32);
      for (size_t r = 1; r < all.size(); ++r) {
        sum = sum + all[r];
      }
      return sum;
    });
  }
  c10::intrusive_ptr<c10d::Work> broadcast(std::vector<at::Tensor>& tensors,
                                           const c10d::BroadcastOptions& options) override {
    return run(tensors.front(), [&](const std::vector<torch::Tensor>& all) {
      return all[static_cast<size_t>(options.rootRank)];
    });
  }

 private:
  struct StreamWork : c10d::Work {
    explicit StreamWork(std::shared_ptr<c10::Event> end) : done(std::move(end)) {}
    bool wait(std::chrono::milliseconds) override {
      done->block(current_stream(done->device()));
      return true;
    }
    std::shared_ptr<c10::Event> done;
  };

  static std::shared_ptr<c10::Event> record(const c10::Stream& stream) {
    auto event = std::make_shared<c10::Event>(stream.device_type());
    event->record(stream);
    return event;
  }
  /// On the device: goes on when every rank has come to this moment. The threads meet only to show
  /// each other their events.
  void meet(size_t moment) {
    auto& ready = meeting_->ready.at(moment);
    ready.at(static_cast<size_t>(rank_)) = record(stream_);
    meeting_->barrier.arrive_and_wait();
    for (const auto& event : ready) {
      event->block(stream_);
    }
  }
  template <typename Combine>
  c10::intrusive_ptr<c10d::Work> run(torch::Tensor tensor, const Combine& combine) {
    const torch::NoGradGuard no_grad;
    record(current_stream(tensor.device()))->block(stream_);
    const c10::StreamGuard guard(stream_);
    meeting_->tensors.at(static_cast<size_t>(rank_)) = tensor;
    meet(0);
    std::vector<torch::Tensor> all;
    for (const torch::Tensor& of_rank : meeting_->tensors) {
      all.push_back(of_rank.to(tensor.device(), /*non_blocking=*/true));
    }
    const torch::Tensor result = combine(all);
    meet(1);  // nobody reads this rank's any more
    tensor.copy_(result, /*non_blocking=*/true);
    return c10::make_intrusive<StreamWork>(record(stream_));
  }

  c10::Stream stream_;
  std::shared_ptr<Meeting> meeting_;
};

ddp::test::Connect by_streams() {
  return [meeting = std::make_shared<Meeting>()](int rank, const auto&) {
    const torch::Device device = enter_device(rank);
    return ddp::test::Connection{"streams", device,
                                 c10::make_intrusive<StreamBackend>(rank, device, meeting)};
  };
}

enum class Stage02 { kDataParallel, kMirrored };

/// Stage 01's or 02's program, up to its report. @return the weights
torch::Tensor train(const Options& options, const std::vector<torch::Device>& devices,
                    Stage02 stage = Stage02::kDataParallel) {
  c10::impl::VirtualGuardImpl(devices.front().type()).setDevice(devices.front());
  const ddp::Dataset dataset = ddp::load_dataset(options);
  ddp::RandomSampler sampler(dataset, options);
  ddp::DataLoader loader(dataset.train, sampler, options, devices.front());
  torch::manual_seed(options.seed);
  ddp::Mlp model(dataset.layers);
  model->to(devices.front());
  const bool is_mirrored = stage == Stage02::kMirrored;
  ddp::Mirrored mirrored_model(model, is_mirrored ? devices : std::vector{devices.front()});
  ddp::Optimizer optimizer =
      is_mirrored ? ddp::Optimizer(mirrored_model, options) : ddp::Optimizer(*model, options);
  const ddp::LaunchEnvironment launch;
  ddp::Training training(options, launch, dataset, loader, model, optimizer, devices);
  for (const int64_t epoch : training.epochs()) {
    sampler.set_epoch(epoch);
    for (const ddp::Batch& batch : loader) {
      if (is_mirrored) {
        ddp::loss(mirrored_model.forward(batch.input), batch).backward();
      } else {
        const torch::Tensor output = devices.size() == 1
                                         ? model->forward(batch.input)
                                         : ddp::data_parallel(model, batch.input, devices);
        ddp::loss(output, batch).backward();
      }
      optimizer.step();
      optimizer.zero_grad();
    }
    if (options.save_every != 0) {
      training.save_snapshot();
    }
  }
  training.report();
  return ddp::parameter_vector(*model);
}

/// The losses in a file of --metrics, which the devices were not waited for in any step.
std::vector<double> losses(const std::string& metrics) {
  std::ifstream file(metrics);
  std::vector<double> found;
  for (std::string line; std::getline(file, line);) {
    const nlohmann::json parsed = nlohmann::json::parse(line);
    if (parsed.contains("loss")) {
      found.push_back(parsed["loss"]);
    }
  }
  return found;
}

/// Trains by FusedStep alone, without a clock or a log.
/// @param graphs null: no step is captured
torch::Tensor train_fused(const Options& options, const ddp::DataLoaderOptions& loader_options,
                          const std::shared_ptr<FakeGraphStream>& graphs = nullptr) {
  const torch::Device& device = loader_options.device;
  c10::impl::VirtualGuardImpl(device.type()).setDevice(device);
  const ddp::Dataset dataset = ddp::load_dataset(options);
  ddp::RandomSampler sampler(dataset, options);
  ddp::DataLoader loader(dataset.train, sampler, loader_options);
  torch::manual_seed(options.seed);
  ddp::Mlp model(dataset.layers);
  model->to(device);
  ddp::Optimizer optimizer(*model, options);
  ddp::FusedStep fused_step(
      options, model, {device}, nullptr, [&] { optimizer.fused_step(); }, graphs);
  for (int64_t epoch = 0; epoch < options.total_epochs; ++epoch) {
    sampler.set_epoch(epoch);
    optimizer.set_epoch(epoch);
    for (const ddp::Batch& batch : loader) {
      fused_step.run(batch, optimizer.learning_rate());
    }
  }
  return ddp::parameter_vector(*model);
}

/// A product with a ReLU in its kernel, in the place of the fake device's.
enum class Epilogue { kExact, kLosesNan, kRoundsOtherwise };
Epilogue epilogue = Epilogue::kExact;
int epilogues = 0;  // that were called
torch::Tensor& multiply_with_epilogue(const torch::Tensor& bias, const torch::Tensor& a,
                                      const torch::Tensor& b, const at::Scalar&, const at::Scalar&,
                                      bool, torch::Tensor& output) {
  ++epilogues;
  at::relu_(at::addmm_out(output, bias, a, b));
  if (epilogue == Epilogue::kLosesNan) {
    output.nan_to_num_(0);
  } else if (epilogue == Epilogue::kRoundsOtherwise) {
    output.mul_(1 + 1e-6);
  }
  return output;
}

std::vector<torch::Device> fake_devices(size_t count) {
  std::vector<torch::Device> devices;
  for (size_t i = 0; i < count; ++i) {
    devices.push_back(fake_device(static_cast<int>(i) + 1));  // the default, 0, would hide much
  }
  return devices;
}

/// To the last bits, which kernels of their own may differ in. Written so that NaN fails.
bool nearly_equal(const torch::Tensor& ours, const torch::Tensor& theirs) {
  return (ours - theirs).norm().item<double>() <= 1e-5 * theirs.norm().item<double>();
}

}  // namespace

TEST_CASE("an operator runs when its stream is waited for, not before", "[fake]") {
  const torch::Device device = fake_device(1);
  const torch::Tensor source = pinned(torch::arange(4.0F));
  const torch::Tensor early = torch::empty({4}, device);
  const torch::Tensor late = torch::empty({4}, device);
  early.copy_(source, /*non_blocking=*/true);
  c10::Event copied(device.type());
  copied.record(current_stream(device));
  late.copy_(source, /*non_blocking=*/true);
  copied.synchronize();
  source.fill_(7);
  CHECK(torch::equal((early + 1).cpu(), torch::arange(4.0F) + 1));
  CHECK(torch::equal(late.cpu(), torch::full({4}, 7.0F)));
}

TEST_CASE("a stream that does not wait is seen in one of the orders", "[fake]") {
  const torch::Device device = fake_device(2);
  for (const bool waits : {true, false}) {
    int wrong = 0;
    for (const StreamOrder order : kBothOrders) {
      set_stream_order(order);
      for (const bool reader_first : {true, false}) {
        const c10::Stream writer = reader_first ? new_stream(device) : current_stream(device);
        const c10::Stream reader = reader_first ? current_stream(device) : new_stream(device);
        torch::Tensor written = torch::zeros({2}, device);
        torch::Tensor read;
        c10::impl::VirtualGuardImpl(device.type()).synchronizeDevice(device.index());
        c10::Event done(device.type());
        {
          const c10::StreamGuard guard(writer);
          written.fill_(1);
          done.record(writer);
        }
        if (waits) {
          done.block(reader);
        }
        {
          const c10::StreamGuard guard(reader);
          read = written.cpu();
        }
        wrong += torch::equal(read, torch::ones({2})) ? 0 : 1;
      }
    }
    CHECK((wrong > 0) == !waits);
  }
  set_stream_order(StreamOrder::kOthersLast);
}

TEST_CASE("freed memory is overwritten unless the allocator knows who still reads it", "[fake]") {
  const torch::Device device = fake_device(0);
  for (const bool known : {true, false}) {
    const c10::Stream reader = new_stream(device);
    torch::Tensor sum;
    {
      const torch::Tensor freed = torch::ones({2}, device);
      c10::Event made(device.type());
      made.record(current_stream(device));
      made.block(reader);
      const c10::StreamGuard guard(reader);
      sum = freed + 1;
      if (known) {
        c10::impl::VirtualGuardImpl(device.type())
            .recordDataPtrOnStream(freed.storage().data_ptr(), reader);
      }
    }
    current_stream(device).synchronize();
    const c10::StreamGuard guard(reader);
    CHECK(torch::equal(sum.cpu(), torch::full({2}, 2.0F)) == known);
  }
}

TEST_CASE("tensors of two devices do not meet in an operator", "[fake]") {
  const torch::Tensor one = torch::ones({2}, fake_device(1));
  const torch::Tensor other = torch::ones({2}, fake_device(2));
  torch::Tensor result = torch::empty({2, 2}, one.device());
  CHECK_THROWS_WITH(at::mm_out(result, one.view({2, 1}), other.view({1, 2})),
                    Catch::Matchers::Contains("on one fake device"));
  CHECK_THROWS_WITH(one + other, Catch::Matchers::Contains("fake:1 and fake:2"));
  CHECK(torch::equal((one + other.to(one.device())).cpu(), torch::full({2}, 2.0F)));
  CHECK(torch::empty({1}, torch::TensorOptions(fake_device(-1))).device() == fake_device(0));
}

TEST_CASE("the loader's batches arrive though the host runs ahead", "[fake]") {
  Options options = small_options();
  const ddp::Dataset dataset = ddp::load_dataset(options);
  const auto batches_on = [&](const torch::Device& device) {
    ddp::RandomSampler sampler(dataset, options);
    ddp::DataLoader loader(dataset.train, sampler, options, device);
    for (const int64_t batch : {7, 3, 10}) {  // epochs that are given up while copies are under way
      loader.begin();
      loader.set_batch(batch, 1);
    }
    std::vector<torch::Tensor> kept;
    for (const int64_t epoch : {0, 1}) {
      loader.set_epoch(epoch);
      for (const ddp::Batch& batch : loader) {
        kept.push_back(batch.input.clone());
        kept.push_back(batch.target.clone());
      }
    }
    for (torch::Tensor& tensor : kept) {
      tensor = tensor.cpu();
    }
    return kept;
  };
  const std::vector<torch::Tensor> expected = batches_on(torch::kCPU);
  const auto equal = [](const auto& a, const auto& b) { return a.equal(b); };
  for (const size_t free_memory : {size_t{0}, size_t{1} << 30}) {
    set_free_memory(free_memory);
    for (const StreamOrder order : kBothOrders) {
      set_stream_order(order);
      INFO("order " << static_cast<int>(order));
      CHECK(std::ranges::equal(batches_on(fake_device(3)), expected, equal));
      // In memory that the stream is still to overwrite for the one before.
      CHECK(std::ranges::equal(batches_on(fake_device(3)), expected, equal));
    }
  }
  set_free_memory(0);
}

TEST_CASE("samples stay on a device with room for four times as much", "[fake]") {
  const Options options = small_options();
  const ddp::Samples samples = ddp::load_dataset(options).train;
  const size_t bytes = samples.input.nbytes() + samples.target.nbytes();
  const auto fits = [&] { return ddp::fits_on(fake_device(1), samples); };
  set_free_memory(4 * bytes);
  CHECK(fits());
  CHECK_FALSE(ddp::fits_on(torch::kCPU, samples));
  setenv("DDP_RESIDENT_MIB", "0", 1);
  CHECK_FALSE(fits());
  setenv("DDP_RESIDENT_MIB", "-1", 1);
  CHECK_THROWS_WITH(fits(), Catch::Matchers::StartsWith("DDP_RESIDENT_MIB: got \"-1\""));
  set_free_memory(4 * bytes - 4);
  setenv("DDP_RESIDENT_MIB", "1", 1);
  CHECK(fits());
  unsetenv("DDP_RESIDENT_MIB");
  CHECK_FALSE(fits());
  set_free_memory(0);
}

TEST_CASE("a loader that is resharded is what one made for that device is", "[fake]") {
  Options options = small_options();
  const ddp::Dataset dataset = ddp::load_dataset(options);
  ddp::RandomSampler sampler(dataset, options);
  const auto batches_of = [](ddp::DataLoader& loader) {
    std::vector<torch::Tensor> batches;
    for (const ddp::Batch& batch : loader) {
      CHECK(loader.unpadded_samples() == batch.size());
      batches.push_back(batch.rows.defined() ? batch.input.index_select(0, batch.rows).cpu()
                                             : batch.input.clone().cpu());
    }
    return batches;
  };
  const auto equal = [](const auto& a, const auto& b) { return a.equal(b); };
  ddp::DataLoader loader(dataset, options);
  const std::vector<torch::Tensor> expected = batches_of(loader);
  for (const std::string speedup : {"graph", "none", "graph"}) {
    options.speedup = speedup;
    for (const size_t free_memory : {size_t{1} << 30, size_t{0}, size_t{1} << 30}) {
      INFO(speedup << ", " << free_memory << " bytes free");
      set_free_memory(free_memory);
      loader.begin();
      loader.reshard(std::make_unique<ddp::RandomSampler>(dataset, options), options,
                     fake_device(2));
      CHECK(std::ranges::equal(batches_of(loader), expected, equal));
      CHECK(loader.batch().rows.defined() == (speedup == "graph" && free_memory > 0));
      CHECK(loader.samples().input.device() ==
            (free_memory > 0 ? fake_device(2) : torch::Device(torch::kCPU)));
      ddp::DataLoader made(dataset.train, sampler, options, fake_device(2));
      CHECK(std::ranges::equal(batches_of(made), expected, equal));
      CHECK(made.batch().rows.defined() == loader.batch().rows.defined());
    }
  }
  set_free_memory(0);
}

TEST_CASE("stages 01 and 02 end on the CPU's bits, also when resumed", "[fake]") {
  const ddp::ScratchFolder scratch("ddp-fake-device");
  Options options = small_options();
  options.batch_per_rank = 31;
  options.metrics = scratch.path() + "/metrics";
  for (const auto& [replicas, stage] :
       {std::pair{1U, Stage02::kDataParallel}, std::pair{3U, Stage02::kDataParallel},
        std::pair{1U, Stage02::kMirrored}, std::pair{3U, Stage02::kMirrored}}) {
    const auto cpu = std::vector<torch::Device>(replicas, torch::kCPU);
    const torch::Tensor expected = train(options, cpu, stage);
    const std::vector<double> expected_losses = losses(options.metrics);
    for (const StreamOrder order : kBothOrders) {
      INFO(replicas << " replicas, order " << static_cast<int>(order) << ", mirrored "
                    << (stage == Stage02::kMirrored));
      set_stream_order(order);
      CHECK(torch::equal(train(options, fake_devices(replicas), stage), expected));
      CHECK(nearly_equal(torch::tensor(losses(options.metrics)), torch::tensor(expected_losses)));
      set_free_memory(size_t{1} << 30);
      CHECK(torch::equal(train(options, fake_devices(replicas), stage), expected));
      set_free_memory(0);
      Options half = options;
      half.snapshot = scratch.path() + "/snapshot";
      half.save_every = 1;
      half.total_epochs = 1;
      train(half, fake_devices(replicas), stage);
      half.total_epochs = 2;
      half.resume = "auto";
      CHECK(torch::equal(train(half, fake_devices(replicas), stage), expected));
      std::filesystem::remove(half.snapshot);
    }
  }
}

TEST_CASE("replicas that are kept mirrored have the CPU's bits, on the caller's streams",
          "[fake]") {
  Options options = small_options();
  options.accumulate = 2;
  const torch::Tensor expected =
      train(options, std::vector<torch::Device>(3, torch::kCPU), Stage02::kMirrored);
  for (const StreamOrder order : kBothOrders) {
    set_stream_order(order);
    const std::vector<torch::Device> devices = fake_devices(3);
    for (const torch::Device& device : devices) {
      c10::impl::VirtualGuardImpl(device.type()).exchangeStream(new_stream(device));
    }
    CHECK(torch::equal(train(options, devices, Stage02::kMirrored), expected));
    for (const torch::Device& device : devices) {
      const c10::impl::VirtualGuardImpl guard(device.type());
      guard.exchangeStream(guard.getDefaultStream(device));
    }
  }
}

TEST_CASE("data_parallel computes on each replica's device and the caller's streams", "[fake]") {
  const std::vector<torch::Device> devices = fake_devices(3);
  for (const StreamOrder order : kBothOrders) {
    set_stream_order(order);
    OnesModule module;
    module->to(devices.front());
    std::vector<c10::Stream> before;
    for (const torch::Device& device : devices) {
      c10::impl::VirtualGuardImpl(device.type()).synchronizeDevice(device.index());
      before.push_back(
          c10::impl::VirtualGuardImpl(device.type()).exchangeStream(new_stream(device)));
    }
    const torch::Tensor input = torch::arange(6.0F).view({6, 1});
    const torch::Tensor output =
        ddp::data_parallel(module, input.to(devices.front(), /*non_blocking=*/true), devices);
    output.sum().backward();
    CHECK(torch::equal(output.detach().cpu(), input + 1));
    CHECK(module->weight.grad().item<float>() == input.sum().item<float>());
    for (const c10::Stream& stream : before) {
      c10::impl::VirtualGuardImpl(stream.device_type()).exchangeStream(stream);
    }
  }
}

TEST_CASE("stage 03 ends on the CPU's bits: staged, direct, on streams of its own", "[fake]") {
  for (const std::string variant : {"", "compressed", "sharded", "accumulating"}) {
    Options options = small_options();
    options.gradient_compression = variant == "compressed" ? "bf16" : "none";
    options.shard_optimizer = variant == "sharded";
    options.accumulate = variant == "accumulating" ? 2 : 1;
    const torch::Tensor expected = train_on_ranks(options, kRanks, by_host(true)).weights;
    for (const StreamOrder order : kBothOrders) {
      INFO(variant << ", order " << static_cast<int>(order));
      set_stream_order(order);
      const auto weights = [&](const ddp::test::Connect& connect) {
        return train_on_ranks(options, kRanks, connect).weights;
      };
      CHECK(torch::equal(weights(by_host(false, GpuTensors::kStaged)), expected));
      CHECK(torch::equal(weights(by_host(false, GpuTensors::kDirect)), expected));
      CHECK(torch::equal(weights(by_streams()), expected));
    }
  }
}

TEST_CASE("the fused step ends where the CPU does", "[fake]") {
  const ddp::ScratchFolder scratch("ddp-fake-device");
  Options options = small_options();
  options.speedup = "fused";
  options.metrics = scratch.path() + "/metrics";
  for (const int64_t accumulate : {1, 2}) {
    options.accumulate = accumulate;
    for (const StreamOrder order : kBothOrders) {
      set_stream_order(order);
      for (const size_t replicas : {1U, 3U}) {
        INFO(replicas << " replicas, order " << static_cast<int>(order));
        const torch::Tensor expected =
            train(options, std::vector<torch::Device>(replicas, torch::kCPU));
        const std::vector<double> expected_losses = losses(options.metrics);
        CHECK(nearly_equal(train(options, fake_devices(replicas)), expected));
        CHECK(nearly_equal(torch::tensor(losses(options.metrics), torch::kFloat64),
                           torch::tensor(expected_losses, torch::kFloat64)));
      }
      const auto expected = train_on_ranks(options, kRanks, by_host(true)).weights;
      CHECK(nearly_equal(train_on_ranks(options, kRanks, by_host(false)).weights, expected));
      CHECK(nearly_equal(train_on_ranks(options, kRanks, by_streams()).weights, expected));
    }
  }
}

/// Of LibTorch's allocator, since it was last asked to forget.
int64_t peak_bytes(const torch::Device& device) {
  return c10::getDeviceAllocator(device.type())
      ->getDeviceStats(device.index())
      .reserved_bytes[0]
      .peak;
}

TEST_CASE("--batch-size auto survives that a device's memory is exhausted", "[fake]") {
  constexpr int64_t kAmple = int64_t{1} << 62;
  for (const std::string speedup : {"none", "fused", "graph"}) {
    const bool step_gathers = speedup == "graph";
    for (const size_t replicas : {1U, 3U}) {
      if (step_gathers && replicas > 1) {
        continue;
      }
      INFO(speedup << ", " << replicas << " replicas");
      Options options = small_options();
      options.speedup = speedup;
      options.find_batch = true;
      const std::vector<torch::Device> devices = fake_devices(replicas);
      const torch::Device device = devices.front();
      const ddp::LaunchEnvironment launch;
      const ddp::Dataset dataset = ddp::load_dataset(options);
      ddp::RandomSampler sampler(dataset, options);
      set_free_memory(step_gathers ? size_t{1} << 30 : 0);
      ddp::DataLoader loader(dataset.train, sampler, options, device);
      ddp::Mlp model(dataset.layers);
      model->to(device);
      ddp::Optimizer optimizer(*model, options);
      int64_t peak = 0;
      int64_t half_peak = 0;
      {
        ddp::BatchTrials trials(options, loader, model, optimizer, devices, nullptr);
        trials.allow(kAmple);
        const auto peak_of = [&](int64_t batch) {
          CHECK(trials.fits(batch));
          return peak_bytes(device);
        };
        peak_of(128);  // replicas stay
        peak = peak_of(128);
        ddp::test::set_device_memory(peak - 1);
        CHECK(!trials.fits(128));  // thrown in the middle of a step
        half_peak = peak_of(64);
        ddp::test::set_device_memory(peak);
        CHECK(trials.fits(128));
      }
      const auto found_batch = [&](int64_t device_bytes) {
        ddp::test::set_device_memory(device_bytes * 100 / 95);  // 5 % stay unused
        if (step_gathers) {  // Training would capture it on a GPU
          ddp::find_batch(options, launch, loader, model, optimizer, devices, nullptr);
        } else {
          const ddp::Training training(options, launch, dataset, loader, model, optimizer, devices);
        }
        return loader.batch_per_rank();
      };
      CHECK(found_batch(peak + 64) == 128);
      CHECK(found_batch((peak + half_peak) / 2) == 64);
      CHECK(peak_bytes(device) <= half_peak);  // not that of the trial that failed
      CHECK(found_batch(kAmple / 100) == 128);
      options.memory_limit_bytes = 1;
      CHECK_THROWS_AS(found_batch(kAmple / 100), ddp::UsageError);
      CHECK((*loader.begin()).rows.defined() == step_gathers);
      if (step_gathers) {  // a loop of one's own would train on all samples
        CHECK_THROWS_WITH(ddp::loss(loader.batch().input, loader.batch()),
                          Catch::Matchers::Contains("got rows of all samples"));
      }
      ddp::test::set_device_memory(kAmple);
      set_free_memory(0);
    }
  }
}

TEST_CASE("a graph repeats the step on each batch's own samples", "[fake]") {
  const torch::Device device = fake_device(2);
  Options options = small_options();
  options.speedup = "graph";
  options.dataset_size = 165;  // the last batch is smaller
  options.total_epochs = 3;
  for (const std::string optimizer : {"momentum", "adam"}) {
    options.optimizer = optimizer;
    for (const auto& [accumulate, schedule] :
         {std::pair<int64_t, std::string>{1, "linear"}, {2, "constant"}}) {
      options.accumulate = accumulate;
      options.lr_schedule = schedule;
      ddp::DataLoaderOptions loader{
          .batch_per_rank = options.batch_per_rank, .accumulate = accumulate, .device = device};
      Options eager = options;
      eager.speedup = "fused";
      for (const StreamOrder order : kBothOrders) {
        INFO(optimizer << " " << accumulate << ", order " << static_cast<int>(order));
        set_stream_order(order);
        const torch::Tensor expected = train_fused(eager, loader);
        for (const bool step_gathers : {false, true}) {
          loader.resident = loader.step_gathers = step_gathers;
          const auto graphs = std::make_shared<FakeGraphStream>(device);
          CHECK(torch::equal(train_fused(options, loader, graphs), expected));
          CHECK(graphs->replays() == 3 * 16 - 3 * accumulate);  // the first of each kind are not
        }
        loader.resident = loader.step_gathers = false;
      }
    }
  }
}

TEST_CASE("with --speedup graph it is the step that gathers resident samples", "[fake]") {
  Options options = small_options();
  const ddp::Samples samples = ddp::load_dataset(options).train;
  set_free_memory(size_t{1} << 30);
  CHECK_FALSE(ddp::loader_options(samples, options, fake_device(1)).step_gathers);
  options.speedup = "graph";
  CHECK(ddp::loader_options(samples, options, fake_device(1)).step_gathers);
  set_free_memory(0);
  CHECK_FALSE(ddp::loader_options(samples, options, fake_device(1)).step_gathers);
}

TEST_CASE("ReLU is a part of the product where that changes no bit and loses no NaN", "[fake]") {
  torch::Library library(torch::Library::IMPL, "aten", c10::DispatchKey::PrivateUse1, __FILE__,
                         __LINE__);
  library.impl("_addmm_activation.out", multiply_with_epilogue);
  Options options = small_options();
  options.speedup = "fused";
  options.dataset_size = 165;  // the last, smaller batch's shape is none that was tried
  const ddp::DataLoaderOptions loader{.batch_per_rank = options.batch_per_rank,
                                      .device = fake_device(1)};
  const auto epilogues_of = [&](Epilogue which) {
    epilogue = which;
    epilogues = 0;
    train_fused(options, loader);
    return epilogues;
  };
  const int trials = 1;  // of the one hidden layer
  CHECK(epilogues_of(Epilogue::kExact) == trials + 2 * 16);
  CHECK(epilogues_of(Epilogue::kLosesNan) == trials);
  CHECK(epilogues_of(Epilogue::kRoundsOtherwise) == trials);
}

TEST_CASE("a trace of a device is refused, as the host does not see what it does when", "[fake]") {
  Options options = small_options();
  options.trace = "t.json";
  ddp::Mlp model(std::vector<int64_t>{3, 1});
  model->to(fake_device(1));
  CHECK_THROWS_AS(ddp::TrainingLog(options, model, fake_device(1)), ddp::UsageError);
  CHECK_NOTHROW(ddp::TrainingLog(options, model, torch::kCPU));
}

TEST_CASE("waits are timed on the rank's own device, by events that are used again", "[fake]") {
  const auto run = [](int64_t epochs) {
    ddp::test::run_ranks(
        kRanks,
        [epochs](ddp::ProcessGroup& process_group) {
          const torch::Device& device = process_group.device();
          constexpr int64_t kSteps = 5;
          int64_t steps = 0;
          // Of the first step of the epoch; any two events are 1 ms apart.
          double least_end_ms = 0;
          ddp::StepTimer timer(
              device, &process_group, ddp::StepTimer::Detail::kAll,
              [&](const ddp::StepTimes& times) {
                TORCH_CHECK(times.exposed_comm_ms == 2, "got ", times.exposed_comm_ms);
                const double beyond_ms =
                    times.end_ms - least_end_ms - static_cast<double>(steps % kSteps);
                TORCH_CHECK(beyond_ms >= 0 && beyond_ms < 60e3, "got ", beyond_ms);
                ++steps;
              });
          const c10::Stream of_backward = new_stream(device);
          for (int64_t epoch = 0; epoch < epochs; ++epoch) {
            least_end_ms = 1 + std::chrono::duration<double, std::milli>(
                                   std::chrono::steady_clock::now().time_since_epoch())
                                   .count();
            timer.begin_epoch(kSteps);
            for (int64_t step = 0; step < kSteps; ++step) {
              {
                const c10::StreamGuard guard(of_backward);
                process_group.all_reduce(torch::ones({4}, device));
                process_group.all_reduce(torch::ones({4}, device));
              }
              timer.add_loss(torch::ones({}, device));
              timer.end_step(1);
            }
            timer.end_epoch();
          }
          TORCH_CHECK(steps == epochs * kSteps);
        },
        by_streams());
  };
  for (const StreamOrder order : kBothOrders) {
    set_stream_order(order);
    const int before = ddp::test::timing_events_created();
    run(1);
    const int first_epoch = ddp::test::timing_events_created() - before;
    run(4);
    CHECK(first_epoch > 0);
    CHECK(ddp::test::timing_events_created() - before == 2 * first_epoch);
  }
}
