// Tests of GPU code without GPUs, on Note [The fake device]: a wrong device, a stream that does not
// wait, a host that waits too early or not at all. For the loader's copies see data_test.cpp.
#include <c10/core/StreamGuard.h>
#include <torch/nn/modules/container/sequential.h>

#include <barrier>
#include <numeric>

#include "common/data/data_loader.hpp"
#include "common/data/dataset.hpp"
#include "common/device/device.hpp"
#include "common/model/flat_parameters.hpp"
#include "common/model/mlp.hpp"
#include "common/parallel/data_parallel.hpp"
#include "common/parallel/distributed_data_parallel.hpp"
#include "common/parallel/distributed_sampler.hpp"
#include "common/parallel/mirrored.hpp"
#include "common/training/optimizer.hpp"
#include "common/training/step_clock.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/fake_device.hpp"
#include "tests/support/threads_as_ranks.hpp"

namespace {

using ddp::current_stream;

constexpr int kRanks = 3;
const auto kPinned = torch::TensorOptions().pinned_memory(true);

/// Makes another device and stream current: device 0 and its stream 0 would hide faults.
void enter(const torch::Device& device) {
  const c10::impl::VirtualGuardImpl guard(device.type());
  guard.setDevice(device);
  guard.exchangeStream(new_stream(device));
}

/// Makes a test run in both orders.
void take_an_order() {
  const auto order = GENERATE(StreamOrder::kOthersLast, StreamOrder::kOthersFirst);
  UNSCOPED_INFO("order " << static_cast<int>(order));
  stream_order = order;
}

std::vector<torch::Device> fake_devices() {
  return {fake_device(1), fake_device(2), fake_device(3)};
}

/// Rows have 64 bytes, so that a part of a batch is aligned like its copy: the last bits of matrix
/// products depend on the alignment.
ddp::Options small_options() {
  ddp::Options options;
  options.layers = {16, 16, 16};
  options.dataset_size = 155;  // an epoch's last step is smaller
  options.batch_size = 10;
  options.optimizer = "momentum";
  options.total_epochs = 2;
  options.bucket_mib = 1e-4;
  return options;
}

/// The loop of stage 03 on ranks as threads.
/// @param backend argument of run_ranks(): a name, or a function that connects
/// @return the weights, (parameters) float64, the same on all ranks
/// @throws c10::Error if the ranks end on different weights
template <typename BackendOrConnect>
torch::Tensor train_on_ranks(const BackendOrConnect& backend) {
  const ddp::Options options = small_options();
  const ddp::Dataset dataset = ddp::load_dataset(options);
  torch::manual_seed(options.seed);
  const ddp::Mlp initial(dataset.layers);
  std::array<torch::Tensor, kRanks> weights;
  const auto train = [&](ddp::ProcessGroup& process_group) {
    const int rank = process_group.rank();
    ddp::Mlp model = std::dynamic_pointer_cast<ddp::MlpImpl>(initial->clone());
    model->to(process_group.device());
    for (torch::Tensor& parameter : model->parameters()) {
      parameter.detach().add_(rank);  // the wrapper gives every rank rank 0's weights
    }
    ddp::DistributedSampler sampler(dataset.train.size(), rank, kRanks, options.seed);
    ddp::DataLoader loader(dataset.train, sampler, options.batch_size, process_group.device());
    ddp::DistributedDataParallel parallel_model(model, process_group,
                                                {.buckets = ddp::bucket_sizes(options.bucket_mib)});
    const auto optimizer = ddp::make_optimizer(model->parameters(), options);
    for (int64_t epoch = 0; epoch < options.total_epochs; ++epoch) {
      sampler.set_epoch(epoch);
      for (const ddp::Batch& batch : loader) {
        optimizer->zero_grad();
        ddp::loss(parallel_model.forward(batch.input), batch.target, batch.weight).backward();
        optimizer->step();
      }
    }
    weights[static_cast<size_t>(rank)] = ddp::parameter_vector(*model);
  };
  run_ranks(kRanks, train, backend);
  for (const torch::Tensor& of_rank : weights) {
    TORCH_CHECK(torch::equal(of_rank, weights[0]), "Expected the same weights on all ranks");
  }
  return weights[0];
}

/// Tensors that ranks, as threads, show each other, with the events since which they are ready.
struct Meeting {
  std::barrier<> barrier{kRanks};
  std::array<torch::Tensor, kRanks> tensors;
  std::array<std::array<std::shared_ptr<c10::Event>, kRanks>, 2> ready;
};

/// Backend like NCCL: collectives run on their own stream, which waits for the caller's stream.
/// wait() makes only the caller's stream wait for them.
class StreamBackend : public c10d::Backend {
 public:
  StreamBackend(int rank, const torch::Device& device, std::shared_ptr<Meeting> meeting)
      : c10d::Backend(rank, kRanks), stream_(new_stream(device)), meeting_(std::move(meeting)) {}
  const std::string getBackendName() const override { return "streams"; }

  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>& tensors,
                                           const c10d::AllreduceOptions&) override {
    return run(tensors.front(), [](const std::vector<torch::Tensor>& all) {
      torch::Tensor sum = all[0];
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
  /// Lets the stream go on when every rank's stream has come to this moment. The threads meet only
  /// to show each other their events.
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
    meet(1);  // no rank reads this rank's tensor any more
    tensor.copy_(result, /*non_blocking=*/true);
    return c10::make_intrusive<StreamWork>(record(stream_));
  }

  c10::Stream stream_;
  std::shared_ptr<Meeting> meeting_;
};

Connect by_streams() {
  return [meeting = std::make_shared<Meeting>()](int rank) {
    const torch::Device device = fake_device(rank + 1);
    enter(device);
    return Connection{device, [=](const auto&, int, int) {
                        return c10::make_intrusive<StreamBackend>(rank, device, meeting);
                      }};
  };
}

/// Makes a step of stage 02 on a batch of 7. @return its gradients
torch::Tensor step_on(const std::vector<torch::Device>& devices, bool mirrored) {
  torch::manual_seed(4);
  ddp::Mlp model(std::vector<int64_t>{16, 16, 16});
  model->to(devices.front());
  ddp::Batch batch;
  batch.input = torch::arange(7.0 * 16).view({7, 16}).sin().to(devices.front());
  batch.target = torch::arange(7).to(devices.front());
  if (mirrored) {
    ddp::Mirrored replicas(model, devices);
    replicas.parallel_apply([&](size_t i) {
      const ddp::Batch share = replicas.share(batch, i);
      ddp::loss(replicas[i].forward(share.input), share.target, share.weight).backward();
    });
    replicas.average_gradients();
    return torch::cat({ddp::flatten_parameters(*model).grad.cpu(),
                       ddp::flatten_parameters(replicas[2]).grad.cpu()});
  }
  ddp::DataParallel parallel_model(model, devices);
  ddp::loss(parallel_model.forward(batch.input), batch.target).backward();
  return ddp::flatten_parameters(*model).grad.cpu();
}

}  // namespace

TEST_CASE("a stream that does not wait is seen in one of the orders") {
  const torch::Device device = fake_device(2);
  for (const bool waits : {true, false}) {
    bool is_seen = false;
    for (const StreamOrder order : {StreamOrder::kOthersLast, StreamOrder::kOthersFirst}) {
      stream_order = order;
      const torch::Tensor written = torch::zeros({2}, device);
      ddp::synchronize(device);
      c10::Event done(device.type());
      {
        const c10::StreamGuard guard(new_stream(device));
        written.fill_(1);
        done.record(guard.current_stream());
      }
      if (waits) {
        done.block(current_stream(device));
      }
      is_seen |= !torch::equal(written.cpu(), torch::ones({2}));
    }
    CHECK(is_seen == !waits);
  }
}

TEST_CASE("stage 02 has the CPU's gradients, on the caller's streams") {
  take_an_order();
  for (const torch::Device& device : fake_devices()) {
    enter(device);
  }
  for (const bool mirrored : {false, true}) {
    INFO("mirrored " << mirrored);
    const torch::Tensor expected = step_on(std::vector<torch::Device>(3, torch::kCPU), mirrored);
    CHECK(torch::equal(step_on(fake_devices(), mirrored), expected));
  }
}

TEST_CASE("stage 03 ends on the CPU's weights, its collectives on streams of their own") {
  take_an_order();
  const torch::Tensor expected = train_on_ranks("shm");
  const torch::Tensor got = train_on_ranks(by_streams());
  // The same order of additions; shm divides as it adds.
  CHECK((got - expected).abs().le(1e-6).all().item<bool>());
}

TEST_CASE("the wrap on streams: buffers, float16, and a backward that threw") {
  take_an_order();
  run_ranks(
      kRanks,
      [](ddp::ProcessGroup& group) {
        const torch::Device& device = group.device();
        torch::nn::Linear single(2, 1);
        torch::nn::Linear half(2, 1);
        const torch::Tensor buffer =
            single->register_buffer("own", torch::full({3}, static_cast<float>(group.rank())));
        torch::nn::Sequential model(single, half);
        model->to(device);
        half->to(torch::kHalf);
        ddp::DistributedDataParallel wrap(single, group);
        ddp::DistributedDataParallel wrap_of_half(half, group);
        torch::nn::Linear elsewhere(2, 1);
        elsewhere->to(fake_device(1 + (group.rank() + 1) % kRanks));
        TORCH_CHECK(message_of([&] {
                      ddp::DistributedDataParallel(elsewhere, group);
                    }).find(", expected the process group's " + device.str()) != std::string::npos);
        const auto backward = [&] {
          model->zero_grad();
          wrap.forward(torch::full({1, 2}, group.rank() + 1.0, device)).sum().backward();
          const auto large = torch::full({1, 2}, 20000.0 * (group.rank() + 1), torch::kHalf);
          wrap_of_half.forward(large.to(device)).sum().backward();
        };
        const auto id = single->weight.register_hook(
            [](const torch::Tensor&) { throw std::domain_error("on purpose"); });
        TORCH_CHECK(message_of(backward) == "on purpose");
        single->weight.remove_hook(id);
        buffer.fill_(group.rank() + 5);
        backward();
        TORCH_CHECK(single->weight.grad().cpu().eq(2).all().item<bool>(), single->weight.grad());
        TORCH_CHECK(half->weight.grad().cpu().sub(40000).abs().le(64).all().item<bool>(),
                    "the mean of float16 gradients is ", half->weight.grad().cpu());
        TORCH_CHECK(buffer.cpu().eq(5).all().item<bool>(), buffer.cpu());
      },
      by_streams());
}

TEST_CASE("barrier() and the end of a group hold the host until the stream is there") {
  take_an_order();
  run_ranks(
      kRanks,
      [](ddp::ProcessGroup& process_group) {
        const torch::Tensor on_host = torch::zeros({4}, kPinned);
        on_host.copy_(torch::full({4}, 5.0F, process_group.device()), /*non_blocking=*/true);
        TORCH_CHECK(on_host.eq(0).all().item<bool>(), "the copy did not wait for its turn");
        process_group.barrier();
        TORCH_CHECK(on_host.eq(5).all().item<bool>(), "barrier() returned before the copy");
        std::vector<int> ranks(kRanks);
        std::iota(ranks.begin(), ranks.end(), 0);
        auto group = process_group.subgroup(ranks);
        on_host.copy_(torch::full({4}, 6.0F, process_group.device()), /*non_blocking=*/true);
        group.reset();
        TORCH_CHECK(on_host.eq(6).all().item<bool>(), "the group ended before the copy");
      },
      by_streams());
}

TEST_CASE("the clock of a device reads the steps when the epoch is over") {
  const torch::Device device = fake_device(3);
  stream_order = StreamOrder::kOthersLast;
  enter(device);
  ddp::StepClock clock(device);
  const torch::Tensor source = torch::zeros({}, kPinned);
  for (int epoch = 0; epoch < 2; ++epoch) {
    clock.begin_epoch();
    clock.end_step(torch::full({}, 1.5F, device));  // the clock waits for the first step of a run
    clock.end_step(torch::empty({}, device).copy_(source, /*non_blocking=*/true));
    source.fill_(4.0F + static_cast<float>(epoch));  // the copy sees it, because nothing has waited
    CHECK(clock.steps_in_epoch() == 2);
    const std::vector<ddp::Step> steps = clock.epoch_steps();
    REQUIRE(steps.size() == 2);
    CHECK(steps[0].loss == 1.5);
    CHECK(steps[1].loss == 4.0 + epoch);
    CHECK(steps[0].step_ms == 1);  // as between any two events
    CHECK(steps[1].end_ns - steps[0].end_ns == Approx(1e6));
  }
  CHECK(clock.steps() == 4);
  CHECK(clock.median_ms() == 1);
}
