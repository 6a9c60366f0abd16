// SPDX-License-Identifier: Apache-2.0
// In-order queues: engines in the order of their signals, and a thread for the rest.
//
// HSA's own queues run kernels; copies are outside of all queues, with signals to wait for and one that tells the end. So
// a copy waits for the signal of the work before it. It is submitted at once only if that has been submitted too: an
// engine that waits for anything else, such as a function of the host, would keep every other queue's copies waiting.
#pragma once

#include <memory>
#include <pinning/vendor.hpp>

#include "hsa_runtime.hpp"

namespace pinning::hsa {

class HsaQueueThread;

/// A new queue of the GPU `gpu`, and its thread, for `wait_for_all`. Throws VendorError where no thread can be started.
std::pair<std::unique_ptr<VendorQueue>, std::shared_ptr<HsaQueueThread>> make_queue(Runtime const& runtime, int gpu);

/// Blocks until all that was submitted to the thread's queue is over.
void wait_for_all(HsaQueueThread& thread);

}  // namespace pinning::hsa
