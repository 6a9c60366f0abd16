# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's cuda-samples that copy: except for times, status and output must be as bare."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from commands import STAGED
from cuda_programs import compiled, run_programs
from results import Result

FILES = ["Common", "Samples"]
WAYS = ["pinning run", STAGED]
EXPLAINED: dict[str, str] = {}
SAMPLES = """
asyncAPI cudaOpenMP mergeSort simpleCallback simpleHyperQ simpleIPC simpleMultiCopy simpleMultiGPU simpleOccupancy
simpleP2P simpleStreams simpleZeroCopy UnifiedMemoryStreams vectorAdd alignedTypes histogram MonteCarloMultiGPU
radixSortThrust reduction scalarProd scan sortingNetworks streamOrderedAllocation streamOrderedAllocationIPC
streamOrderedAllocationP2P threadFenceReduction BlackScholes fastWalshTransform p2pBandwidthLatencyTest
quasirandomGenerator SobolQRNG binomialOptions bf16TensorCoreGemm simpleCudaGraphs graphMemoryFootprint
graphMemoryNodes jacobiCudaGraphs graphConditionalNodes StreamPriorities transpose simpleAttributes simpleTexture3D
convolutionSeparable convolutionTexture dct8x8 HSOpticalFlow matrixMul simpleAtomicIntrinsics simpleLayeredTexture
simplePitchLinearTexture simpleSurfaceWrite simpleTemplates
"""


def run(checkout: Path, work: Path, way: str, only: Collection[str] | None) -> dict[str, Result]:
    wanted = set(SAMPLES.split())
    folders = [each for each in sorted(checkout.glob("Samples/*/*")) if each.name in wanted]
    sources = {each.name: [*sorted(each.glob("*.cu")), *sorted(each.glob("*.cpp"))] for each in folders}
    flags = ["-Xcompiler", "-fopenmp", "--extended-lambda", "-rdc=true", f"-I{checkout / 'Common'}"]
    return run_programs(compiled(sources, work / "programs", *flags), way, only)
