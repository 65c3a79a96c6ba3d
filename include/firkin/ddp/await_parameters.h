// The line by which a module says that it is about to use its parameters: LibTorch's C++ modules have no forward hooks.
//
//   struct BlockImpl : torch::nn::Module {
//     torch::Tensor forward(torch::Tensor x) {
//       firkin::await_parameters(*this);
//       return x + second->forward(torch::gelu(first->forward(x)));
//     }
//     ...
//   };
//
// Under the strategy `ordered`, parameters of the last step may still be on their way when the next forward begins; a module that awaits
// them lets communication go on behind the layers before it.
#pragma once

namespace torch::nn {
class Module;
}

namespace firkin {

// Afterwards the parameters of `module` are those of the last step. So are its submodules', but for those that await theirs themselves.
//
// One atomic read when no module is wrapped with the strategy `ordered`; harmless for a module that is not wrapped. Call it at the top of
// every forward() that uses parameters, before they are read: on every path, for a module whose gradient comes without it fails the step.
// Thread-safe. Throws GroupError when a collective failed.
void await_parameters(const torch::nn::Module& module);

}  // namespace firkin
