# SPDX-License-Identifier: Apache-2.0
"""``stub.py FOLDER PACKAGE...``: writes the stubs (`.pyi`) of the Cython modules of packages into a new folder.

A stub has the functions and methods that have ``->``, the attributes that a `cdef class` shows to Python, the annotated
variables, and the Python classes. A public function without ``->`` is an error, reported with file and line, and so is
any construct that this program does not know. A `cdef class` without an annotation is internal, and so is a module that
has nothing else. CONTRIBUTING.md explains how to annotate.
"""

from __future__ import annotations

import ast
import builtins
import re
import shutil
import sys
import textwrap
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Any

from Cython.Compiler import Errors, ExprNodes, Nodes, Parsing
from Cython.Compiler.AutoDocTransforms import AnnotationWriter
from Cython.Compiler.Scanning import FileSourceDescriptor, PyrexScanner
from Cython.Compiler.TreeFragment import StringParseContext

INTEGER = re.compile(r"u?int(ptr|\d+)?_t|s?size_t|Py_ssize_t|char|short|int|long")
SIMPLE = {"bint": "bool", "double": "float", "float": "float"}
VAGUE = {"object", "list", "dict", "tuple", "set", "frozenset", "void"}
DECORATORS = {"property", "staticmethod", "classmethod", "contextmanager"}
INVISIBLE = (
    Nodes.CDefExternNode,
    Nodes.CEnumDefNode,
    Nodes.CImportStatNode,
    Nodes.CStructOrUnionDefNode,
    Nodes.CTypeDefNode,
    Nodes.CVarDefNode,
    Nodes.ExprStatNode,
    Nodes.ParallelAssignmentNode,
    Nodes.PassStatNode,
    Nodes.SingleAssignmentNode,
)
HEADER = "# SPDX-License-Identifier: Apache-2.0\n# Generated from the .pyx by tools/stub.py."
Line = tuple[Any, str]  # a node, and a line of the stub that comes from it


class StubError(Exception):
    def __init__(self, node: Any, problem: str) -> None:
        source, line, _ = node.pos
        super().__init__(f"{source.filename}:{line}: {problem}")


class Module:
    """The stub of one module: its lines, and the names that they may use."""

    def __init__(self, path: Path, name: str) -> None:
        self.name = name
        self.text: dict[str, list[str]] = {}
        self.imports = {name: f"from typing import {name}" for name in ("Self", "final")}
        self.for_annotations: dict[str, Any] = {}
        self.cimports: dict[str, str] = {}  # the module of each name
        self.root = path.parents[name.count(".")]
        self.own: set[str] = set()
        pxd = path.with_suffix(".pxd")
        declared = self.parsed(pxd) if pxd.exists() else []
        self.declared = {
            node.class_name: statements(node.body)
            for node in declared
            if isinstance(node, Nodes.CClassDefNode) and node.body
        }
        cimports = [node for node in declared if isinstance(node, Nodes.FromCImportStatNode)]
        self.lines = [line for node in (*cimports, *self.parsed(path)) for line in self.statement(node)]

    def parsed(self, path: Path) -> list[Any]:
        text = path.read_text()
        self.text[str(path)] = text.splitlines()
        context = StringParseContext(self.name, cpp=True)
        scope = context.find_module(self.name, need_pxd=False)
        source = FileSourceDescriptor(str(path))
        scanner = PyrexScanner(StringIO(text), source, source_encoding="UTF-8", scope=scope, context=context)
        return statements(Parsing.p_module(scanner, path.suffix == ".pxd", self.name).body)

    def stub(self) -> str:
        """The text; empty if nothing is public."""
        used = {name for node, line in self.lines for name in self.names(node, line)}
        for name, node in self.for_annotations.items():
            if name not in used:
                raise StubError(node, f"{name} is imported under TYPE_CHECKING, and no annotation uses it")
        imports = sorted({self.imports[name] for name in used - self.own})
        return "\n".join([HEADER, *imports, *(line for _, line in self.lines), ""]) if self.lines else ""

    def names(self, node: Any, line: str) -> Iterator[str]:
        text = textwrap.dedent(line)
        text += "\ndef f(): ..." if text.startswith("@") else " ..." if text.endswith(":") else ""
        for part in ast.walk(ast.parse(text)):
            if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Load) and not hasattr(builtins, part.id):
                if part.id not in self.imports and part.id not in self.own:
                    raise StubError(node, f"{part.id} is neither imported nor defined in this module")
                yield part.id

    def statement(self, node: Any) -> Iterator[Line]:
        match node:
            case Nodes.FromCImportStatNode():
                for _, name, alias in node.imported_names:
                    self.cimports[alias or name] = str(node.module_name)
                    self.imports.setdefault(alias or name, import_line(node.module_name, name, alias or name))
            case Nodes.FromImportStatNode():
                for name, target in node.items:
                    self.imports[target.name] = import_line(node.module.module_name.value, name, target.name)
            case Nodes.SingleAssignmentNode(rhs=ExprNodes.ImportNode()):
                name = node.rhs.module_name.value
                if node.lhs.name != name.split(".")[0]:
                    raise StubError(node, f"import ... as {node.lhs.name} is not known")
                self.imports[node.lhs.name] = f"import {name}"
            case Nodes.IfStatNode() if getattr(node.if_clauses[0].condition, "name", "") == "TYPE_CHECKING":
                yield from self.type_checking(node)
            case Nodes.CClassDefNode() | Nodes.PyClassDefNode():
                yield from self.class_(node)
            case _:
                yield from self.member(node, None)

    def type_checking(self, node: Any) -> Iterator[Line]:
        """The Python code of an ``if TYPE_CHECKING`` block, which only the stub needs."""
        text = self.text[node.pos[0].filename]
        first = last = node.pos[1]
        while last < len(text) and not re.match(r"\S", text[last]):
            last += 1
        for statement in ast.parse(textwrap.dedent("\n".join(text[first:last]))).body:
            match statement:
                case ast.ImportFrom():
                    for alias in statement.names:
                        known_as = alias.asname or alias.name
                        self.imports[known_as] = import_line(str(statement.module), alias.name, known_as)
                        self.for_annotations[known_as] = node
                case ast.Import(names=[ast.alias(name=name, asname=None)]):
                    self.imports[name.split(".")[0]] = f"import {name}"
                case ast.Assign(targets=[ast.Name(id=name)]) | ast.ClassDef(name=name):
                    self.own.add(name)
                    yield node, ast.unparse(statement)
                case _:
                    raise StubError(node, f"{ast.unparse(statement)!r} is not known under TYPE_CHECKING")

    def class_(self, node: Any) -> Iterator[Line]:
        name = getattr(node, "class_name", None) or node.name
        body = [*self.declared.get(name, ()), *statements(node.body)]
        is_native = isinstance(node, Nodes.CClassDefNode)
        if is_native and not any(self.is_annotated(each) for each in body):
            return
        self.own.add(name)
        all_bases = [text_of(base) for base in (node.bases.args if node.bases else ())]
        bases = self.type_comment(node) or ", ".join(base for base in all_bases if not self.is_hidden(base))
        if any(text_of(each.decorator) == "cython.final" for each in node.decorators or ()):
            yield node, "@final"
        yield node, f"class {name}({bases}):" if bases else f"class {name}:"
        members = [line for each in body for line in self.member(each, node)]
        for each, line in members or [(node, "...")]:
            yield each, textwrap.indent(line, "    ")

    def is_hidden(self, base: str) -> bool:
        """Whether a base class comes from a module that has no stub."""
        module = self.cimports.get(base, "")
        path = self.root / (module.replace(".", "/") + ".pyx")
        return path.exists() and not Module(path, module).stub()

    def is_annotated(self, node: Any) -> bool:
        return bool(getattr(node, "return_type_annotation", None) or self.type_comment(node) or self.overloads(node))

    def member(self, node: Any, owner: Any) -> Iterator[Line]:
        """The lines of a member of class `owner`, or of the module if `owner` is None."""
        match node:
            case Nodes.DefNode():
                yield from self.function(node, owner)
            case Nodes.CFuncDefNode():
                if node.overridable:
                    yield from self.cpdef(node, owner)
            case Nodes.CVarDefNode(visibility="readonly" | "public"):
                for declarator in node.declarators:
                    kind = self.type_comment(node) or python_type(node.base_type)
                    if node.visibility == "readonly":
                        yield node, f"@property\ndef {declarator.name}(self) -> {kind}: ..."
                    else:
                        yield node, f"{declarator.name}: {kind}"
            case Nodes.SingleAssignmentNode(lhs=ExprNodes.NameNode(annotation=None), rhs=value):
                if owner:  # the parser allows it only in Python classes
                    yield node, f"{node.lhs.name} = {default(value)}"
                elif isinstance(value, ExprNodes.CallNode) and text_of(value.function) == "TypeVar":
                    self.own.add(node.lhs.name)
                    yield node, f"{node.lhs.name} = {text_of(value)}"
            case Nodes.SingleAssignmentNode(lhs=ExprNodes.NameNode(annotation=annotation)) if annotation:
                self.own.add(node.lhs.name)
                value = f" = {default(node.rhs)}" if owner else ""
                yield node, f"{node.lhs.name}: {annotation.string.value}{value}"
            case Nodes.ExprStatNode(expr=ExprNodes.NameNode(annotation=annotation)) if annotation:
                self.own.add(node.expr.name)
                yield node, f"{node.expr.name}: {annotation.string.value}"
            case _ if not isinstance(node, INVISIBLE):
                raise StubError(node, f"{type(node).__name__} is not known here")

    def function(self, node: Any, owner: Any) -> Iterator[Line]:
        if overloads := self.overloads(node):
            yield node, "\n".join(overloads)
            return
        if node.name == "__getbuffer__":
            yield node, "def __buffer__(self, flags: int, /) -> memoryview: ..."
            return
        returned = node.return_type_annotation
        if not returned:
            if not node.name.startswith("_"):
                raise StubError(node, f"{node.name} has no ->; what is internal has a name with an underscore")
            return
        if node.is_async_def:
            raise StubError(node, "async def is not known")
        name, result, first = node.name, returned.string.value, "self"
        if name == "__cinit__":
            name, result, first = "__new__", "Self", "cls"
        for decorator in node.decorators or ():
            known = text_of(decorator.decorator)
            if known not in DECORATORS and not known.startswith("cython."):
                raise StubError(decorator, f"the decorator {known} is not known")
            first = "cls" if known == "classmethod" else "" if known == "staticmethod" else first
            if not known.startswith("cython."):
                yield node, f"@{known}"
        parameters = ", ".join(parameters_of(node, first if owner else ""))
        yield node, f"def {name}({parameters}) -> {result}: ...{self.ignored(node)}"

    def cpdef(self, node: Any, owner: Any) -> Iterator[Line]:
        """A `cpdef` function: its grammar has no ``->``, so a type comment gives the types."""
        name = node.declarator.base.name
        if not (comment := self.type_comment(node)):
            raise StubError(node, f"{name} has no type comment, such as  # type: (int) -> int")
        types = ast.parse(comment, mode="func_type")
        names = [each.declarator.name or each.base_type.name for each in node.declarator.args]
        kinds = map(ast.unparse, types.argtypes)
        typed = [f"{each}: {kind}" for each, kind in zip(names[bool(owner) :], kinds, strict=True)]
        yield node, f"def {name}({', '.join(names[: bool(owner)] + typed)}) -> {ast.unparse(types.returns)}: ..."

    def overloads(self, node: Any) -> list[str]:
        """The comment right above a function, if it begins with ``# @overload``."""
        text = self.text[node.pos[0].filename]
        first = last = node.pos[1] - 1  # of its first decorator
        while re.match(r"\s*# ", text[first - 1]):
            first -= 1
        lines = [line.strip()[2:] for line in text[first:last]]
        return lines if lines and lines[0] == "@overload" else []

    def comment(self, node: Any, pattern: str) -> str:
        line = node.pos[1] - 1 + len(getattr(node, "decorators", None) or ())
        found = re.search(pattern, self.text[node.pos[0].filename][line])
        return found[1].strip() if found else ""

    def type_comment(self, node: Any) -> str:
        return self.comment(node, r"#\s*type:\s*(?!ignore)([^#]+)")

    def ignored(self, node: Any) -> str:
        comment = self.comment(node, r"(#\s*type:\s*ignore[^#]*)")
        return comment and f"  {comment}"


def statements(node: Any) -> list[Any]:
    """The statements of a body, flattened: the parser nests several on one line."""
    if not isinstance(node, Nodes.StatListNode):
        return [node]
    return [each for nested in node.stats for each in statements(nested)]


def import_line(module: str, name: str, known_as: str) -> str:
    return f"from {module} import {name}" + ("" if name == known_as else f" as {known_as}")


def text_of(expression: Any) -> str:
    writer = AnnotationWriter()
    text = writer.write(expression)
    if writer.incomplete:
        raise StubError(expression, "this expression is not known")
    return str(text)


def default(expression: Any) -> str:
    """A default value in a stub: a constant, or ``...`` for anything else."""
    text = str(AnnotationWriter().write(expression))
    try:
        ast.literal_eval(text)
    except (SyntaxError, ValueError):
        return "..."
    return text


def parameters_of(node: Any, first: str) -> Iterator[str]:
    arguments = list(node.args)
    if first:
        yield first
        arguments = arguments[1:]
    by_position = [parameter(each) for each in arguments if each.pos_only]
    if by_position:
        yield from [*by_position, "/"]
    yield from (parameter(each) for each in arguments if not each.pos_only and not each.kw_only)
    by_name = [parameter(each) for each in arguments if each.kw_only]
    if node.star_arg and not node.star_arg.name.startswith("_"):  # those are taken only to be refused
        yield f"*{parameter(node.star_arg)}"
    elif by_name:
        yield "*"
    yield from by_name
    if node.starstar_arg:
        yield f"**{parameter(node.starstar_arg)}"


def parameter(node: Any) -> str:
    is_plain = isinstance(node, Nodes.PyArgDeclNode)
    name = node.name if is_plain else node.declarator.name
    if node.annotation:
        kind = node.annotation.string.value
    elif is_plain or node.base_type.name is None:
        raise StubError(node, f"{name} has no type")
    else:
        kind = python_type(node.base_type)
        if kind not in ("int", "bool", "float") and not node.not_none:
            kind += " | None"
    if is_plain or not node.default:
        return f"{name}: {kind}"
    return f"{name}: {kind} = {default(node.default)}"


def python_type(node: Any) -> str:
    name = getattr(node, "name", None)
    if isinstance(node, Nodes.CSimpleBaseTypeNode) and name and not node.module_path and name not in VAGUE:
        return "int" if INTEGER.fullmatch(name) else SIMPLE.get(name, name)
    raise StubError(node, f"{name or 'this C type'} does not tell the type for Python: annotate it")


def main(arguments: list[str]) -> int:
    folder, *packages = map(Path, arguments)
    Errors.init_thread()
    shutil.rmtree(folder, ignore_errors=True)
    modules = [(path, path.relative_to(package.parent)) for package in packages for path in package.rglob("*.pyx")]
    for path, relative in sorted(modules):
        try:
            text = Module(path, ".".join(relative.with_suffix("").parts)).stub()
        except (StubError, Errors.CompileError) as error:
            print(error, file=sys.stderr)
            return 1
        if text:
            stub = folder / relative.with_suffix(".pyi")
            stub.parent.mkdir(parents=True, exist_ok=True)
            stub.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
