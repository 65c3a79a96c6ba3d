// Declares that a module is about to use its parameters. LibTorch's C++ modules have no forward hooks, so forward()
// says it explicitly:
//
//   struct BlockImpl : torch::nn::Module {
//     torch::Tensor forward(torch::Tensor x) {
//       firkin::await_parameters(*this);
//       return x + second->forward(torch::gelu(first->forward(x)));
//     }
//     ...
//   };
//
// Under the strategy `ordered`, parameters of the last step may still be in flight when the next forward begins. A
// module that awaits its own lets communication continue behind the layers before it.
#pragma once

namespace torch::nn {
class Module;
}

namespace firkin {

// Waits until the parameters of `module`, and of submodules that do not await their own, are those
// of the last step.
//
// Costs one atomic read if no module is wrapped with the strategy `ordered`; harmless for a module that is not wrapped.
// Call it at the top of every forward() that uses parameters, before reading them, and on every path: a module whose
// gradient arrives without it fails the step. Throws GroupError if a collective failed.
//
// Thread-safe: parts of one forward may run on several threads, each of which awaits its own modules. Under `ordered` a
// call may run the optimiser, which sees only the gradients that have just arrived. Until all these threads are joined,
// nothing else may touch the module's gradients, nor parameters of a part that has not awaited them. The latter also
// holds under `sharded`.
void await_parameters(const torch::nn::Module& module);

}  // namespace firkin
