# SPDX-License-Identifier: Apache-2.0
"""python setup.py build_ext --inplace"""

from Cython.Build import cythonize
from setuptools import Extension, setup

import pagetable

hits = Extension(
    "hits", ["hits.pyx"], include_dirs=[str(pagetable.include_dir())], extra_compile_args=["-std=c++20", "-pthread"]
)
setup(name="hits", ext_modules=cythonize([hits]))
