// Steps that fail or are abandoned: the other ranks hear of it at once, and the next step is right.

#include <latch>

#include "known_gradients.h"

namespace firkin {
namespace {

// In all of these steps no, one or two handlers abandon what has failed already.
TEST(StepFailure, ABackwardThatThrowsFailsTheStepOnEveryRankAndTheNextSumsAreRight) {
  on_two_ranks([](const ProcessGroup& group, const DataParallelOptions& options) {
    TwoParameters net;
    DataParallel ddp(net, group, options);
    for (int step = 0; step < 12; ++step) {
      const int abandons = step / 4;
      const int broken_rank = step / 2 % 2;
      net.zero_grad(/*set_to_none=*/step % 4 < 2);
      if (step % 2 == 1) {
        synchronise(ddp, net.loss(rank_value(group)));
        EXPECT_FALSE(ddp.last_failure());
        net.expect_gradients(kMean);
        continue;
      }
      const bool breaks = group.rank == broken_rank;
      const std::string error = error_of([&] { synchronise(ddp, breaks ? net.broken_loss() : net.loss(1)); });
      EXPECT_THAT(error, HasSubstr("broken on purpose"));
      if (!breaks) {
        EXPECT_THAT(error, HasSubstr(fmt::format("rank {}", broken_rank)));
      }
      if (abandons == 0 && breaks) {
        EXPECT_EQ(failure_of([&] { ddp.finish_gradient_synchronization(); }), ddp.last_failure()) << "did not notice; is told again";
      }
      for (int i = 0; i < abandons; ++i) ddp.abandon_step("too late to matter");
      EXPECT_EQ(ddp.last_failure(), (StepFailure{broken_rank, step, "broken on purpose"}));
      net.expect_no_gradients();
    }
    EXPECT_EQ(ddp.stats().steps, 6);
  });
}

// Rank 1's forward throws in the given steps, its handler abandons them.
void abandon_on_rank_1(const ProcessGroup& group, DataParallel& ddp, torch::nn::Module& net, const std::function<at::Tensor(int)>& loss) {
  for (int step = 0; step < 5; ++step) {
    net.zero_grad();
    const StepFailure failure{1, step, "no more memory"};
    if (step != 0 && step != 3) {
      synchronise(ddp, loss(step));
      EXPECT_FALSE(ddp.last_failure());
      continue;
    }
    if (group.rank == 1) {
      ddp.abandon_step(failure.reason);
    } else {
      EXPECT_EQ(failure_of([&] { synchronise(ddp, loss(step)); }), failure);
    }
    EXPECT_EQ(ddp.last_failure(), failure);
    for (const at::Tensor& parameter : net.parameters()) EXPECT_FALSE(parameter.grad().defined());
  }
  EXPECT_EQ(ddp.stats().steps, 3);
}

TEST(StepFailure, AbandoningInTheFirstStepAndLaterIsAnErrorOnTheOtherRanks) {
  on_two_ranks([](const ProcessGroup& group, DataParallelOptions options) {
    for (const bool finds_unused : {false, true}) {
      options.find_unused_parameters = finds_unused;
      TwoParameters net;
      DataParallel ddp(net, group, options);
      abandon_on_rank_1(group, ddp, net,
                        [&](int step) { return finds_unused && step % 2 == 1 ? net.b.sum() : net.loss(rank_value(group)); });
      net.expect_gradients(kMean);
    }
  });
}

TEST(StepFailure, AbandoningWithBuffersIsAnErrorOnTheOtherRanksAndBuffersAreEqualAfterTheNextStep) {
  on_two_ranks([](const ProcessGroup& group, const DataParallelOptions& options) {
    torch::nn::Sequential net(torch::nn::Linear(3, 4), torch::nn::BatchNorm1d(4));
    DataParallel ddp(*net, group, options);
    abandon_on_rank_1(group, ddp, *net, [&](int step) {
      return net->forward(seeded_randn({5, 3}, static_cast<uint64_t>(10 * step + group.rank)).to(at::kFloat)).pow(3).mean();
    });
    for (const at::Tensor& buffer : net->buffers()) {
      const auto of_ranks = all_gather(group, {buffer.to(at::kDouble).sum().item<double>()});
      EXPECT_EQ(of_ranks[0], of_ranks[1]);
    }
  });
}

// In every iteration that throws, a handler abandons: forwards that throw in a row, on one rank or on two, behind a backward that threw
// and behind a step that another rank failed. Calling it twice changes nothing.
TEST(StepFailure, BatchesThatThrowInARowAreAbandonedOneByOne) {
  on_two_ranks([](const ProcessGroup& group, const DataParallelOptions& options) {
    TwoParameters net;
    DataParallel ddp(net, group, options);
    const std::vector<std::vector<int>> forward_throws_on = {{}, {1}, {1}, {}, {0}, {1}, {0, 1}, {1}, {}, {1}, {}};
    const std::vector<std::vector<int>> backward_throws_on = {{}, {}, {}, {1}, {}, {}, {}, {}, {1}, {}, {}};
    const auto is_in = [&](const std::vector<int>& ranks) { return std::ranges::find(ranks, group.rank) != ranks.end(); };
    for (size_t step = 0; step < forward_throws_on.size(); ++step) {
      const bool fails = !forward_throws_on[step].empty() || !backward_throws_on[step].empty();
      net.zero_grad();
      try {
        if (is_in(forward_throws_on[step])) throw std::runtime_error("a bad batch");
        synchronise(ddp, is_in(backward_throws_on[step]) ? net.broken_loss() : net.loss(rank_value(group)));
        EXPECT_FALSE(fails) << step;
        net.expect_gradients(kMean);
      } catch (const std::exception& error) {
        EXPECT_TRUE(fails) << step;
        for (int i = 0; i < 2; ++i) ddp.abandon_step(error.what());
        ASSERT_TRUE(ddp.last_failure());
        EXPECT_EQ(ddp.last_failure()->step, static_cast<int64_t>(step));
      }
    }
    EXPECT_EQ(ddp.stats().steps, 2);
  });
}

// Not after the timeout of minutes.
TEST(StepFailure, ACollectiveThatOneRankCallsAloneIsAnErrorThatNamesBothWaits) {
  using Call = std::function<void(DataParallel&)>;
  const Call audits = [](DataParallel& ddp) { ddp.audit(); };
  const Call changes = [](DataParallel& ddp) { ddp.parameters_changed(); };
  for (const auto& [name, call] : {std::pair("audit()", audits), std::pair("parameters_changed()", changes)}) {
    run_ranks(2, [&](const ProcessGroup& group) {
      TwoParameters net;
      DataParallel ddp(net, group, {});
      for (int i = 0; i < 2; ++i) {  // in the same places both work
        synchronise(ddp, net.loss(rank_value(group)));
        call(ddp);
      }
      const auto started = std::chrono::steady_clock::now();
      const std::string heard = loss_of([&] {
        if (group.rank == 0) call(ddp);
        synchronise(ddp, net.loss(rank_value(group)));
      });
      EXPECT_THAT(heard, HasSubstr(fmt::format("rank 0 waits in step 2 of {} on module 0, rank 1 in step 2 of module 0", name)));
      EXPECT_LT(std::chrono::steady_clock::now() - started, std::chrono::seconds(30));
    });
  }
}

// For a penalty on the gradients, say: on one rank, then on both.
TEST(StepFailure, ABackwardThatCreatesAGraphFailsTheStepOnEveryRankAndTheNextStepWorks) {
  on_two_ranks([](const ProcessGroup& group, const DataParallelOptions& options) {
    TwoParameters net;
    DataParallel ddp(net, group, options);
    for (int step = 0; step < 6; ++step) {
      const bool creates_graph = (step == 2 && group.rank == 1) || step == 4;
      net.zero_grad();
      const auto failure = error_of([&] {
        const at::Tensor loss = net.loss(rank_value(group));
        (creates_graph ? loss.pow(2) : loss).backward({}, /*retain_graph=*/creates_graph, creates_graph);  // the gradient has a graph
        ddp.finish_gradient_synchronization();
      });
      if (step != 2 && step != 4) {
        net.expect_gradients(kMean);
        continue;
      }
      EXPECT_THAT(failure, HasSubstr("create_graph"));
      EXPECT_EQ(ddp.last_failure()->step, step);
      net.expect_no_gradients();
    }
  });
}

// A backward under no_sync() after the step's own, of an auxiliary loss say, and then the optimiser's step. (Who goes back before he steps
// does the same at first: own_steps_test.cpp. So the rank's suspicion makes all compare in the step after the next.)
TEST(StepFailure, ParametersThatWereSteppedWithGradientsOfNoSyncFailTheStepAfterTheNextOnEveryRank) {
  on_two_ranks([](const ProcessGroup& group, const DataParallelOptions& options) {
    for (const bool on_one_rank : {true, false}) {
      TwoParameters net;
      DataParallel ddp(net, group, options);
      torch::optim::SGD optimizer(net.parameters(), 0.1);
      const auto train = [&](bool adds_own_gradients = false) {
        optimizer.zero_grad();
        synchronise(ddp, net.loss(rank_value(group)));
        if (adds_own_gradients) {
          const auto scope = ddp.no_sync();
          net.loss(rank_value(group)).backward();
        }
        optimizer.step();
      };
      train();
      train(/*adds_own_gradients=*/group.rank == 1 || !on_one_rank);
      train();
      EXPECT_THAT(message_of<AuditError>([&] { train(); }), AllOf(HasSubstr("no_sync"), HasSubstr("differs between rank 0 and rank 1")));
      net.expect_no_gradients();
      for (const at::Tensor& parameter : net.all) parameter.detach().fill_(1);  // back to the checkpoint, and on
      train();
      net.expect_gradients(kMean);
    }
  });
}

// Two modules of one size, as generator and critic are: rank 1's forward of the first throws, and it goes on with the second. No optimiser
// steps with what belongs to the other module.
TEST(StepFailure, RanksThatStepTwoModulesInDifferentOrdersAllHearWhichTwo) {
  struct Row {
    const char* strategy;
    int ranks;
    std::string first, second;  // names that the modules are given
  };
  for (const Row& row : {Row{"naive", 2, "", ""}, Row{"flat", 3, "generator", "critic"}, Row{"overlap", 2, "generator", "critic"},
                         Row{"bucketed", 3, "", ""}, Row{"ordered", 2, "", ""}}) {
    SCOPED_TRACE(row.strategy);
    std::latch all_have_heard(row.ranks);
    const auto started = std::chrono::steady_clock::now();
    const auto trained = results_of(row.ranks, [&](const ProcessGroup& group) {
      TwoParameters first, second;
      DataParallelOptions options = with_strategy(row.strategy);
      options.name = row.first;
      DataParallel of_first(first, group, options);
      options.name = row.second;
      DataParallel of_second(second, group, options);
      const auto train = [&](DataParallel& ddp, TwoParameters& net) {
        torch::optim::SGD optimizer(net.parameters(), 0.1);
        optimizer.zero_grad();
        synchronise(ddp, net.loss(rank_value(group)));
        optimizer.step();
      };
      const auto train_both = [&](bool skips_first) {
        if (!skips_first) train(of_first, first);
        train(of_second, second);
      };
      train_both(false);
      EXPECT_THAT(loss_of([&] { train_both(group.rank == 1); }),
                  AllOf(HasSubstr(row.first.empty() ? "module 0" : row.first), HasSubstr(row.second.empty() ? "module 1" : row.second)));
      for (DataParallel* ddp : {&of_first, &of_second})
        EXPECT_THROW(ddp->abandon_step("goes on"), GroupError) << "the group is lost for both";
      all_have_heard.arrive_and_wait();
      return copies({first.a, first.b, second.a, second.b});
    });
    for (const Tensors& rank : trained) EXPECT_TRUE(same_bits(rank, trained[0]));
    EXPECT_LT(std::chrono::steady_clock::now() - started, std::chrono::seconds(30));
  }
}

// Rank 0 fails under no_sync() in the first two steps, or in every other: gradients that came under it tell a failure from that of the step
// before.
TEST(StepFailure, ABackwardThatThrowsUnderNoSyncIsToldByAbandoning) {
  on_two_ranks([](const ProcessGroup& group, const DataParallelOptions& options) {
    for (const bool in_a_row : {false, true}) {
      TwoParameters net;
      DataParallel ddp(net, group, options);
      for (int step = 0; step < 4; ++step) {
        const bool fails = in_a_row ? step < 2 : step % 2 == 0;
        net.zero_grad();
        try {
          {
            const auto scope = ddp.no_sync();
            (fails && !in_a_row && group.rank == 0 ? net.broken_loss() : net.loss(1)).backward();
          }
          if (fails && in_a_row && group.rank == 0) throw OnPurpose("broken on purpose");
          synchronise(ddp, net.loss(rank_value(group)));
          EXPECT_FALSE(fails);
          net.expect_gradients(kMean + 1);
        } catch (const std::exception& error) {
          EXPECT_TRUE(fails);
          ddp.abandon_step(error.what());
          EXPECT_EQ(ddp.last_failure(), (StepFailure{0, step, "broken on purpose"}));
        }
      }
    }
  });
}

TEST(StepFailure, AParameterWithoutGradientOnOneRankIsTheSameErrorOnAllRanksAndNamesIt) {
  on_two_ranks([](const ProcessGroup& group, const DataParallelOptions& options) {
    TwoParameters net;
    DataParallel ddp(net, group, options);
    for (int step = 0; step < 6; ++step) {
      net.zero_grad(/*set_to_none=*/step != 2);  // zeros that are left over hide nothing
      if (step % 2 == 1) {
        synchronise(ddp, net.loss(rank_value(group)));
        net.expect_gradients(kMean);
        continue;
      }
      const bool lacks = group.rank == 1 || step == 4;  // on one rank, then on both
      const auto failure = failure_of([&] { synchronise(ddp, lacks ? net.b.sum() : net.loss(1)); });
      ASSERT_TRUE(failure);
      if (step != 4) {
        EXPECT_EQ(failure->rank, 1);
      }
      EXPECT_EQ(failure->step, step);
      EXPECT_THAT(failure->reason, AllOf(HasSubstr("no gradient for a;"), HasSubstr("find_unused_parameters")));  // not for b
      EXPECT_EQ(ddp.last_failure(), failure);
      net.expect_no_gradients();
    }
  });
}

TEST(StepFailure, InAJoinSectionRanksStayTogetherWhenTheLastBackwardOfOneFails) {
  on_two_ranks([](const ProcessGroup& group, const DataParallelOptions& options) {
    TwoParameters net;
    torch::optim::SGD optimizer(net.parameters(), torch::optim::SGDOptions(0.5));
    DataParallel ddp(net, group, options);
    const int batches = group.rank == 0 ? 2 : 4;
    int failures = 0;
    for (int step = 0; step < batches; ++step) {
      optimizer.zero_grad();
      const bool breaks = step == batches - 1;  // step 1 of rank 0, step 3 of rank 1, when rank 0 is in finish()
      if (error_of([&] { synchronise(ddp, breaks ? net.broken_loss() : net.loss(1)); }).empty()) {
        optimizer.step();
      } else {
        ++failures;
      }
    }
    while (failure_of([&] { ddp.join([&] { optimizer.step(); }); })) ++failures;
    EXPECT_EQ(failures, 2);
    EXPECT_EQ(ddp.stats().steps, 2);
    for (const at::Tensor& parameter : net.all) EXPECT_TRUE(at::equal(parameter, at::zeros_like(parameter)));  // two steps of gradient 1
    net.zero_grad();
    synchronise(ddp, net.loss(rank_value(group)));
    net.expect_gradients(kMean);
  });
}

// The ranks below `offenders` run a backward under no_sync() between backward and finish_gradient_synchronization(), and go on.
TEST(StepFailure, ABackwardUnderNoSyncBeforeTheFinishIsRefusedAndMakesNoRankDiffer) {
  for (const int ranks : {2, 3}) {
    run_ranks(ranks, [](const ProcessGroup& group) {
      for (const int offenders : {1, group.size}) {
        for (const bool under_no_sync : {true, false}) {
          TwoParameters net;
          DataParallelOptions options = with_strategy("bucketed", 16);
          options.finish_with_backward = false;
          DataParallel ddp(net, group, options);
          for (int step = 0; step < 4; ++step) {
            net.zero_grad();
            net.loss(3.0 * group.rank).backward();
            if (step == 1 && group.rank < offenders) {
              std::optional<DataParallel::NoSync> scope;
              if (under_no_sync) scope.emplace(ddp);
              EXPECT_THAT(message_of<RuntimeError>([&] { net.loss(1).backward(); }), HasSubstr("finish_gradient_synchronization()"));
            }
            const auto failure = failure_of([&] { ddp.finish_gradient_synchronization(); });
            EXPECT_EQ(ddp.last_failure(), failure);
            ASSERT_EQ(failure.has_value(), step == 1);
            if (failure) {
              EXPECT_EQ(failure->step, step);
              EXPECT_LT(failure->rank, offenders);
            } else {
              net.expect_gradients(1.5 * (group.size - 1));
            }
          }
        }
      }
    });
  }
}

}  // namespace
}  // namespace firkin
