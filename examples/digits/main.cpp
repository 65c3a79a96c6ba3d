// Trains a small convolutional network to read noisy 8x8 digits, on as many ranks as the launcher starts.
//
//   digits --ranks 2        or: torchrun --nproc-per-node 2 --no-python digits        or: mpirun -np 2 digits
//
// Every rank draws the same images from the same seed and trains on its part of every batch. The batch is the same 64 images whatever
// the number of ranks, so the losses agree but for rounding.
#include <torch/torch.h>

#include <array>
#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include "firkin/base/error.h"
#include "firkin/comm/run_ranks.h"
#include "firkin/ddp/data_parallel.h"

namespace {

constexpr int64_t kSide = 8, kRows = 7, kColumns = 5;  // pixels of an image and of a glyph
constexpr int64_t kTrainImages = 2048, kTestImages = 1024, kBatch = 64, kEpochs = 8;
constexpr double kNoise = 0.25;  // standard deviation; a glyph's ink is 1, its paper 0

// The digits, row by row from the top, # for ink.
constexpr std::array<const char*, 10> kGlyphs = {
    ".###./#...#/#...#/#...#/#...#/#...#/.###.", "..#../.##../..#../..#../..#../..#../.###.", ".###./#...#/....#/...#./..#../.#.../#####",
    ".###./#...#/....#/..##./....#/#...#/.###.", "...#./..##./.#.#./#..#./#####/...#./...#.", "#####/#..../####./....#/....#/#...#/.###.",
    ".###./#..../#..../####./#...#/#...#/.###.", "#####/....#/...#./..#../..#../.#.../.#...", ".###./#...#/#...#/.###./#...#/#...#/.###.",
    ".###./#...#/#...#/.####/....#/....#/.###.",
};

struct Images {
  at::Tensor pixels;  // [count, 1, kSide, kSide]
  at::Tensor labels;  // [count], 0 to 9
};

// Digits at random places of their images, with normal noise, from the global generator.
Images draw_images(int64_t count) {
  Images images{torch::randn({count, 1, kSide, kSide}) * kNoise, torch::randint(10, {count}, torch::kLong)};
  const at::Tensor left = torch::randint(kSide - kColumns + 1, {count}, torch::kLong);
  const at::Tensor top = torch::randint(kSide - kRows + 1, {count}, torch::kLong);
  auto pixels = images.pixels.accessor<float, 4>();
  for (int64_t i = 0; i < count; ++i) {
    const char* glyph = kGlyphs.at(images.labels[i].item<int64_t>());
    const auto x = left[i].item<int64_t>(), y = top[i].item<int64_t>();
    for (int64_t row = 0; row < kRows; ++row) {
      for (int64_t column = 0; column < kColumns; ++column) {
        if (glyph[row * (kColumns + 1) + column] == '#') pixels[i][0][y + row][x + column] += 1.0F;
      }
    }
  }
  return images;
}

torch::nn::Sequential make_network() {
  using namespace torch::nn;
  return Sequential(Conv2d(Conv2dOptions(1, 8, 3).padding(1)), ReLU(), MaxPool2d(2),   // 8 x 4 x 4
                    Conv2d(Conv2dOptions(8, 16, 3).padding(1)), ReLU(), MaxPool2d(2),  // 16 x 2 x 2
                    Flatten(), Linear(16 * 2 * 2, 10));
}

// The part of `rows` that belongs to this rank: every size-th.
at::Tensor my_part(const firkin::ProcessGroup& group, const at::Tensor& rows) {
  return rows.slice(0, group.rank, std::nullopt, group.size);
}

// The share of images that the network reads right; each rank looks at its part.
double accuracy(const firkin::ProcessGroup& group, torch::nn::Sequential& network, const Images& images) {
  torch::NoGradGuard no_gradients;
  const at::Tensor guesses = network->forward(my_part(group, images.pixels)).argmax(1);
  at::Tensor right = guesses.eq(my_part(group, images.labels)).sum().to(torch::kDouble);
  firkin::all_reduce(group, right);
  return right.item<double>() / static_cast<double>(images.labels.size(0));
}

// Throws unless every rank ended with the same parameters.
void check_agreement(const firkin::ProcessGroup& group, torch::nn::Sequential& network) {
  std::vector<double> sums;
  for (const at::Tensor& parameter : network->parameters()) sums.push_back(parameter.sum(torch::kDouble).item<double>());
  for (const std::vector<double>& other : firkin::all_gather(group, sums)) {
    if (other != sums) throw firkin::RuntimeError("the ranks ended with different parameters");
  }
}

int train(const firkin::ProcessGroup& group, const std::vector<std::string>& arguments) {
  if (!arguments.empty()) throw firkin::InputError("unknown argument '" + arguments[0] + "': expected only --ranks N");
  if (kBatch % group.size != 0) throw firkin::InputError(std::to_string(group.size) + " ranks: expected a number that divides 64");
  torch::manual_seed(1);
  const Images train_images = draw_images(kTrainImages), test_images = draw_images(kTestImages);
  torch::nn::Sequential network = make_network();
  firkin::DataParallel ddp(*network, group, {.buckets = firkin::automatic()});
  torch::optim::SGD optimizer(network->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
  for (int64_t epoch = 1; epoch <= kEpochs; ++epoch) {
    at::Tensor loss_sum = torch::zeros({}, torch::kDouble);
    for (const at::Tensor& batch : torch::randperm(kTrainImages).split(kBatch)) {
      const at::Tensor mine = my_part(group, batch);
      optimizer.zero_grad();
      const at::Tensor output = network->forward(train_images.pixels.index_select(0, mine));
      const at::Tensor loss = torch::nn::functional::cross_entropy(output, train_images.labels.index_select(0, mine));
      loss.backward();
      optimizer.step();
      loss_sum += loss.detach() * static_cast<double>(mine.size(0));
    }
    firkin::all_reduce(group, loss_sum);
    const double right = accuracy(group, network, test_images);
    const double loss = loss_sum.item<double>() / kTrainImages;
    if (group.rank == 0) std::printf("epoch %ld: loss %.6f, accuracy %.4f\n", static_cast<long>(epoch), loss, right);
  }
  check_agreement(group, network);
  if (group.rank == 0) std::printf("ranks with the same parameters: %d\n", group.size);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return firkin::run_ranks(argc, argv, train);
}
