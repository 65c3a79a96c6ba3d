// Declares that a module is about to use its parameters. LibTorch's C++ modules have no forward hooks, so forward() says it explicitly:
//
//   struct BlockImpl : torch::nn::Module {
//     torch::Tensor forward(torch::Tensor x) {
//       firkin::await_parameters(*this);
//       return x + second->forward(torch::gelu(first->forward(x)));
//     }
//     ...
//   };
//
// Under the strategy `ordered`, parameters of the last step may still be in flight when the next forward begins. A module that awaits them
// lets communication continue behind the layers before it.
#pragma once

namespace torch::nn {
class Module;
}

namespace firkin {

// On return the parameters of `module` are those of the last step, and so are those of its submodules, unless these await their own.
//
// Costs one atomic read if no module is wrapped with the strategy `ordered`; harmless for a module that is not wrapped. Call it at the top
// of every forward() that uses parameters, before reading them, and on every path: a module whose gradient arrives without it fails the
// step. Thread-safe. Throws GroupError if a collective failed.
void await_parameters(const torch::nn::Module& module);

}  // namespace firkin
