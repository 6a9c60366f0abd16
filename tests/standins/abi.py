# SPDX-License-Identifier: Apache-2.0
"""Check that the natively called part of a vendor's interface matches the vendor's headers."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from installed import tool
from standins.standin import Driver, MissingError

VENDORS = Path(__file__).parents[2] / "native" / "vendors"

PROGRAM = r"""
@HEADERS@
#include "@ABI@"
#include <type_traits>

template <class Theirs, class Ours>
constexpr bool alike = sizeof(Theirs) == sizeof(Ours) && std::is_pointer_v<Theirs> == std::is_pointer_v<Ours> &&
                       std::is_class_v<Theirs> == std::is_class_v<Ours>;
template <class...> struct Types {};
template <class Theirs, class Ours> constexpr bool all_alike = false;
template <class... Theirs, class... Ours>
  requires(sizeof...(Theirs) == sizeof...(Ours))
constexpr bool all_alike<Types<Theirs...>, Types<Ours...>> = (true && ... && alike<Theirs, Ours>);
template <class> struct Parts;
template <class Result, class... Arguments> struct Parts<Result (*)(Arguments...)> {
  using result = Types<std::conditional_t<std::is_void_v<Result>, char, Result>>;
  using arguments = Types<Arguments...>;
};
template <class Theirs, class Ours>
constexpr bool same_function = all_alike<typename Parts<Theirs>::result, typename Parts<Ours>::result> &&
                               all_alike<typename Parts<Theirs>::arguments, typename Parts<Ours>::arguments>;

#define CONSTANT(name, value) static_assert((long long)(name) == (long long)(value), #name);
#define FUNCTION(name, result, ...) \
  static_assert(same_function<decltype(&::name), result (*)(__VA_ARGS__)>, #name);
namespace pinning::@VENDOR@ {
@LISTS@
}
"""


def checks_with(driver: Driver) -> list[str]:
    """The command that compiles C++ against a vendor's headers and makes nothing; skips the test if there is none."""
    try:
        folders = [f"-isystem{include}" for include in driver.includes()]
    except MissingError as missing:
        pytest.skip(str(missing))
    return [tool("c++", "apt-get install g++"), "-std=c++20", "-fsyntax-only", *driver.options, *folders]


def check(driver: Driver, vendor: str, headers: Sequence[str], lists: Sequence[str], folder: Path) -> None:
    """Compile `lists`, which are lists of native/vendors/<vendor>/<vendor>_abi.hpp, against the vendor's headers."""
    command = checks_with(driver)
    words = {
        "HEADERS": "\n".join(f"#include <{header}>" for header in headers),
        "ABI": str(VENDORS / vendor / f"{vendor}_abi.hpp"),
        "VENDOR": vendor,
        "LISTS": "\n".join(f"{name}({name.rpartition('_')[2].rstrip('S')})" for name in lists),
    }
    text = PROGRAM
    for word, value in words.items():
        text = text.replace(f"@{word}@", value)
    source = folder / "abi.cpp"
    source.write_text(text)
    done = subprocess.run([*command, source], text=True, capture_output=True)
    assert done.returncode == 0, done.stderr
