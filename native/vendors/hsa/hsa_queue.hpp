// SPDX-License-Identifier: Apache-2.0
// In-order queues: copy engines, ordered by signals, and a thread for all other work.
//
// HSA's own queues run kernels; copies are outside all queues, with signals to wait for and a completion signal. So a
// copy waits for the signal of the work before it. It is submitted immediately only if that work has been submitted
// too: an engine that waits for anything else, such as a host function, would delay every other queue's copies.
#pragma once

#include <memory>
#include <pinning/vendor.hpp>

#include "hsa_runtime.hpp"

namespace pinning::hsa {

class HsaQueueThread;

/// Makes a queue of the GPU `gpu`, and its thread, for `wait_for_all`. Throws VendorError if no thread can be started.
std::pair<std::unique_ptr<VendorQueue>, std::shared_ptr<HsaQueueThread>> make_queue(Runtime const& runtime, int gpu);

/// Blocks until all work submitted to the thread's queue is over.
void wait_for_all(HsaQueueThread& thread);

}  // namespace pinning::hsa
