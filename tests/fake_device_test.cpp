// What can be tested of GPUs without one, on Note [The fake device]: a wrong device, a stream that
// does not wait, a staging buffer that is used too early.
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/StreamGuard.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <algorithm>
#include <array>
#include <barrier>
#include <filesystem>

#include "common/backends/host_backend.hpp"
#include "common/backends/shm/shm_communicator.hpp"
#include "common/backends/store_exchange.hpp"
#include "common/base/exit_codes.hpp"
#include "common/base/scratch_folder.hpp"
#include "common/parallel/data_parallel.hpp"
#include "common/parallel/mirrored.hpp"
#include "common/training/batch_finder.hpp"
#include "common/training/training.hpp"
#include "tests/catch.hpp"
#include "tests/support/fake_device.hpp"
#include "tests/support/train_on_ranks.hpp"

namespace {

using ddp::GpuTensors;
using ddp::Options;
using ddp::test::fake_device;
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
  const Options options = small_options();
  const ddp::Dataset dataset = ddp::load_dataset(options);
  const auto batches_on = [&](const torch::Device& device) {
    ddp::RandomSampler sampler(dataset, options);
    ddp::DataLoader loader(dataset.train, sampler, options, device);
    std::vector<torch::Tensor> kept;
    for (const ddp::Batch& batch : loader) {
      kept.push_back(batch.input.clone());
      kept.push_back(batch.target.clone());
    }
    for (torch::Tensor& tensor : kept) {
      tensor = tensor.cpu();
    }
    return kept;
  };
  const std::vector<torch::Tensor> expected = batches_on(torch::kCPU);
  for (const StreamOrder order : kBothOrders) {
    set_stream_order(order);
    const std::vector<torch::Tensor> ours = batches_on(fake_device(3));
    CHECK(std::ranges::equal(ours, expected,
                             [](const auto& a, const auto& b) { return a.equal(b); }));
  }
}

TEST_CASE("stages 01 and 02 end on the CPU's bits, also when resumed", "[fake]") {
  const ddp::ScratchFolder scratch("ddp-fake-device");
  Options options = small_options();
  options.batch_per_rank = 31;
  options.metrics = scratch.path() + "/metrics";
  for (const size_t replicas : {1U, 3U}) {
    const auto cpu = std::vector<torch::Device>(replicas, torch::kCPU);
    const torch::Tensor expected = train(options, cpu);
    for (const StreamOrder order : kBothOrders) {
      INFO(replicas << " replicas, order " << static_cast<int>(order));
      set_stream_order(order);
      CHECK(torch::equal(train(options, fake_devices(replicas)), expected));
      Options half = options;
      half.snapshot = scratch.path() + "/snapshot";
      half.save_every = 1;
      half.total_epochs = 1;
      train(half, fake_devices(replicas));
      half.total_epochs = 2;
      half.resume = "auto";
      CHECK(torch::equal(train(half, fake_devices(replicas)), expected));
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
  Options options = small_options();
  options.speedup = "fused";
  for (const int64_t accumulate : {1, 2}) {
    options.accumulate = accumulate;
    for (const StreamOrder order : kBothOrders) {
      set_stream_order(order);
      for (const size_t replicas : {1U, 3U}) {
        INFO(replicas << " replicas, order " << static_cast<int>(order));
        CHECK(nearly_equal(train(options, fake_devices(replicas)),
                           train(options, std::vector<torch::Device>(replicas, torch::kCPU))));
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
  for (const std::string speedup : {"none", "fused"}) {
    for (const size_t replicas : {1U, 3U}) {
      INFO(speedup << ", " << replicas << " replicas");
      Options options = small_options();
      options.speedup = speedup;
      options.find_batch = true;
      const std::vector<torch::Device> devices = fake_devices(replicas);
      const torch::Device device = devices.front();
      const ddp::LaunchEnvironment launch;
      const ddp::Dataset dataset = ddp::load_dataset(options);
      ddp::RandomSampler sampler(dataset, options);
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
        const ddp::Training training(options, launch, dataset, loader, model, optimizer, devices);
        return loader.batch_per_rank();
      };
      CHECK(found_batch(peak + 64) == 128);
      CHECK(found_batch((peak + half_peak) / 2) == 64);
      CHECK(peak_bytes(device) <= half_peak);  // not that of the trial that failed
      CHECK(found_batch(kAmple / 100) == 128);
      options.memory_limit_bytes = 1;
      CHECK_THROWS_AS(found_batch(kAmple / 100), ddp::UsageError);
      ddp::test::set_device_memory(kAmple);
    }
  }
}
