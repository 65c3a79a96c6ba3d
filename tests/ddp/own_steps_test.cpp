// Programs that step by themselves: they move parameters and back, or keep the gradients that they are given. And what tells of steps that
// went apart.
#include "programs.h"

#include "../test.h"

namespace firkin {
namespace {

void write(const Tensors& to, const Tensors& values) {
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < values.size(); ++i) to[i].copy_(values[i]);
}

void add(const Tensors& to, const std::function<at::Tensor(const at::Tensor&)>& value) {
  const at::NoGradGuard no_grad;
  for (at::Tensor leaf : to) leaf.add_(value(leaf), 0.1);
}

// Each rank by its own noise, in the first ones of two micro-batches.
Tensors perturbs_weights(Trainee& trainee, FollowedNet& net, int micro_batches) {
  for (int step = 0; step < kSteps; ++step) {
    trainee.zero_grad();
    trainee.drain();
    const Tensors here = copies(trainee.leaves());
    for (int micro = 0; micro < 2; ++micro) {
      const at::Tensor x = trainee.batch(step, micro);
      add(trainee.leaves(), [&](const at::Tensor&) { return micro < micro_batches ? x.mean() : at::zeros({}, doubles()); });
      micro == 0 ? trainee.backward_alone(net.loss(x)) : trainee.backward(net.loss(x));
      write(trainee.leaves(), here);
    }
    trainee.step();
  }
  return {};
}
Tensors perturbs_weights_in_a_micro_batch(Trainee& trainee, FollowedNet& net) {
  return perturbs_weights(trainee, net, 1);
}
Tensors perturbs_weights_in_every_backward(Trainee& trainee, FollowedNet& net) {
  return perturbs_weights(trainee, net, 2);
}

Tensors normalises_weights_between_micro_batches(Trainee& trainee, FollowedNet& net) {
  for (int step = 0; step < kSteps; ++step) {
    trainee.zero_grad();
    trainee.backward_alone(net.loss(trainee.batch(step)));
    {
      const at::NoGradGuard no_grad;
      net.first->weight.div_(net.first->weight.norm());
    }
    trainee.backward(net.loss(trainee.batch(step, 1)));
    trainee.step();
  }
  return {};
}

// Gradient surgery: gradients of two losses, and of all steps before, are kept; take: what of them.
Tensors keeps_gradients(Trainee& trainee, FollowedNet& net, bool to_none, const std::function<at::Tensor(const at::Tensor&)>& take) {
  Tensors kept;
  for (int step = 0; step < kSteps; ++step) {
    std::array<Tensors, 2> of_losses;
    for (int task = 0; task < 2; ++task) {
      trainee.zero_grad(to_none);
      trainee.backward(net.loss(trainee.batch(step, task)));
      trainee.drain();
      for (const at::Tensor& leaf : trainee.leaves()) of_losses[static_cast<size_t>(task)].push_back(take(leaf.grad()));
    }
    for (size_t i = 0; i < trainee.leaves().size(); ++i) {
      at::Tensor leaf = trainee.leaves()[i];
      leaf.mutable_grad() = (of_losses[0][i] - 0.5 * of_losses[1][i]).reshape(leaf.sizes()).clone();
      if (to_none) kept.insert(kept.end(), {of_losses[0][i], of_losses[1][i]});
    }
    trainee.step();
  }
  return kept;
}

Tensors keeps_gradients_themselves(Trainee& trainee, FollowedNet& net) {
  return keeps_gradients(trainee, net, /*to_none=*/true, [](const at::Tensor& gradient) { return gradient; });
}
Tensors keeps_what_lies_in_their_memory(Trainee& trainee, FollowedNet& net) {
  return keeps_gradients(trainee, net, /*to_none=*/true, [](const at::Tensor& gradient) { return gradient.detach().view(-1); });
}
Tensors keeps_copies_and_zeroes_gradients(Trainee& trainee, FollowedNet& net) {
  return keeps_gradients(trainee, net, /*to_none=*/false, [](const at::Tensor& gradient) { return gradient.clone(); });
}

Tensors penalises_gradients_that_autograd_grad_computes(Trainee& trainee, FollowedNet& net) {
  for (int step = 0; step < kSteps; ++step) {
    trainee.zero_grad();
    const at::Tensor loss = net.loss(trainee.batch(step));
    at::Tensor penalty = at::zeros({}, doubles());
    for (const at::Tensor& gradient :
         torch::autograd::grad({loss}, net.parameters(), /*grad_outputs=*/{}, /*retain_graph=*/true, /*create_graph=*/true)) {
      penalty = penalty + gradient.pow(2).sum();
    }
    trainee.backward(loss + 0.5 * penalty);
    trainee.step();
  }
  return {};
}

constexpr ProgramByHand kOwnSteps[] = {
    {"perturbs weights in a micro-batch", perturbs_weights_in_a_micro_batch, false, 0},
    {"perturbs weights in every backward", perturbs_weights_in_every_backward, false, 0},
    {"perturbs weights in every backward, audited", perturbs_weights_in_every_backward, false, 2},
    {"normalises weights between micro-batches", normalises_weights_between_micro_batches},
    {"penalises gradients that autograd::grad computes", penalises_gradients_that_autograd_grad_computes},
    {"keeps gradients themselves", keeps_gradients_themselves, true},
    {"keeps what lies in their memory", keeps_what_lies_in_their_memory, true},
    {"keeps copies and zeroes gradients", keeps_copies_and_zeroes_gradients, true},
};

class OwnSteps : public testing::TestWithParam<int> {};

TEST_P(OwnSteps, TrainAsByHand) {
  run_ranks(GetParam(), [](const ProcessGroup& group) { expect_as_by_hand(group, kOwnSteps); });
}

TEST_P(OwnSteps, ARankThatMissesAStepIsEveryRanksErrorInTheNext) {
  run_ranks(GetParam(), [](const ProcessGroup& group) {
    for (const std::string& strategy : kComparedStrategies) {
      for (const auto& [missed, counts] : {std::pair{0, "0 on rank 0 and 1 on rank 1"}, std::pair{3, "1 on rank 0 and 2 on rank 1"}}) {
        SCOPED_TRACE(fmt::format("{}, step {}, rank {}", strategy, missed, group.rank));
        FollowedNet net;
        Trainee trainee(group, net, strategy, /*audit_every=*/0);
        std::string said;
        for (int step = 0; step <= missed + 1 && said.empty(); ++step) {
          said = message_of<AuditError>([&, missed = missed] {
            trainee.zero_grad();
            if (group.rank != 1 || step != missed) trainee.backward(net.loss(trainee.batch(step)));
            trainee.step();
          });
        }
        EXPECT_THAT(said, HasSubstr(counts));
        for (int step = 0; step < 2; ++step) train(trainee, net, step);
        EXPECT_NO_THROW(trainee.ddp().audit());
      }
    }
  });
}

TEST_P(OwnSteps, AnAuditCoversBuffersAndWhateverAnAuditedOptimiserSteps) {
  run_ranks(GetParam(), [](const ProcessGroup& group) {
    FollowedNet net;
    const at::Tensor bank = net.register_buffer("bank", at::zeros({2}, doubles()));
    at::Tensor temperature = at::ones({}, doubles()).requires_grad_();
    DataParallelOptions options;
    options.audit_every = 2;
    DataParallel ddp(net, group, options);
    Tensors stepped = net.parameters();
    stepped.push_back(temperature);
    torch::optim::SGD optimizer(stepped, 0.1);
    ddp.audit_optimizer(optimizer);
    const auto step = [&](int number) {
      optimizer.zero_grad();
      (net.loss(batch_of(number, group.rank, doubles())) * temperature.pow(2)).backward();
      temperature.mutable_grad().zero_();
      optimizer.step();
    };
    for (int number = 0; number < 3; ++number) step(number);
    ddp.audit();
    if (group.rank == 1) temperature.data().add_(1e-9);
    EXPECT_THAT(error_of([&] { ddp.audit(); }), HasSubstr("tensor 4 of the optimiser's group 0 differs between rank 0 and rank 1"));
    step(3);
    EXPECT_THAT(error_of([&] { step(4); }), HasSubstr("tensor 4 of the optimiser's group 0"));
    temperature.data().fill_(1);
    step(5);
    if (group.rank == 1) bank.data().fill_(1);  // which counts as no write: somebody else's mistake
    EXPECT_THAT(error_of([&] { ddp.audit(); }), HasSubstr("buffer bank differs between rank 0 and rank 1"));
    bank.add_(group.rank);  // a forward's
    EXPECT_EQ(error_of([&] { ddp.audit(); }), "");
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, OwnSteps, Values(2, 3));

}  // namespace
}  // namespace firkin
