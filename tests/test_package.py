"""What importing the package costs, who may import whom, and what is said of missing packages."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from command import run_without

import ngramspec

ROOT = Path(ngramspec.__file__).parent
# What each room may import beside itself. Rooms that are not here yet have their place.
FLOOR = {"errors", "draft", "stats", "files", "lazy_names"}
WINGS = {"drafters", "hf_model", "verification", "costs"}
CORE = FLOOR | WINGS | {"hf_model.compat", "decoding", "options", "stores"}
MAY_IMPORT = {
    "errors": set(),
    "files": set(),
    "lazy_names": {"errors"},
    "_native": {"lazy_names"},
    "theory": {"draft"},
    "draft": {"errors"},
    "stats": {"draft", "errors"},
    "stores": FLOOR | {"_native"},
    "costs": FLOOR | {"_native"},
    "drafters": FLOOR | {"stores", "_native", "costs"},
    "hf_model": FLOOR | {"hf_model.compat"},
    "hf_model.compat": {"errors", "draft"},
    "verification": FLOOR | {"hf_model.compat"},
    "decoding": FLOOR | WINGS | {"hf_model.compat", "options", "stores", "_native"},
    "options": FLOOR | {"drafters", "stores"},
    "speculator": CORE,
    "hf": CORE | {"speculator"},
    "stepwise": CORE | {"hf", "speculator"},
    "many": CORE | {"hf", "speculator", "stepwise"},
    "__init__": CORE | {"speculator", "hf", "many"},
    "engines": FLOOR | {"costs", "decoding", "drafters", "speculator", "stores", "_native"},
    "server": CORE | {"speculator", "hf", "stepwise", "__init__", "_native"},
    "wrap": CORE | {"speculator", "hf", "__init__"},
    "measure": CORE | {"speculator", "hf", "__init__", "_native", "theory"},
    "cli": CORE | {"speculator", "hf", "__init__", "measure", "server", "wrap"},
    "__main__": {"cli"},
}
WITHOUT_TORCH = {"draft", "stats", "errors", "files", "lazy_names", "theory", "costs", "drafters"}
WITHOUT_TORCH |= {"options", "speculator", "stores"}


def test_importing_ngramspec_imports_nothing_optional():
    code = (
        "import sys, ngramspec; bad = {'transformers', 'vllm', 'rich', 'matplotlib', 'scipy',"
        " 'gguf', 'xxhash'} & set(sys.modules); sys.exit(f'imported {bad}' if bad else 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_clone_beside_a_script_does_not_hide_the_package(tmp_path):
    (tmp_path / "ngramspec").mkdir()
    code = "import ngramspec; ngramspec.enable"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path)


def test_a_tree_that_was_built_in_place_needs_no_metadata():
    code = (
        "from importlib import metadata\n"
        "def none(name): raise metadata.PackageNotFoundError(name)\n"
        "metadata.version = none\n"
        "import ngramspec, ngramspec.cli; print(ngramspec.__version__)"
    )
    ran = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert ran.stdout == "0\n"


def _name(path: Path) -> str:
    return ".".join(["ngramspec", *path.relative_to(ROOT).with_suffix("").parts])


def _room(module: str) -> str:
    parts = module.split(".")
    if parts[1:3] == ["hf_model", "compat"]:  # a room with no other below it
        return "hf_model.compat"
    return parts[1] if len(parts) > 1 else "__init__"


@pytest.mark.parametrize("path", sorted(ROOT.rglob("*.py")), ids=lambda p: str(p.relative_to(ROOT)))
def test_rooms_import_only_what_stands_below_them(path):
    own = _room(_name(path))
    source = path.read_text()
    assert re.search(r"^\s*(from|import) benchmarks\b", source, re.MULTILINE) is None
    for node in ast.walk(ast.parse(source)):
        for module in _imported(node):
            room = _room(module)
            assert room == own or room in MAY_IMPORT[own], f"{own} imports {module}"


def _imported(node: ast.AST) -> list[str]:
    """The modules of the package that a statement imports."""
    if isinstance(node, ast.Import):
        return [each.name for each in node.names if each.name.split(".")[0] == "ngramspec"]
    if not isinstance(node, ast.ImportFrom):
        return []
    assert node.level == 0
    if node.module != "ngramspec":
        return [node.module] if node.module.split(".")[0] == "ngramspec" else []
    rooms = {path.stem for path in ROOT.iterdir()}  # the other names are public
    names = [each.name for each in node.names]
    return [f"ngramspec.{name}" if name in rooms else "ngramspec" for name in names]


def test_every_room_is_known():
    rooms = {path.stem for path in ROOT.iterdir() if path.suffix == ".py" or any(path.glob("*.py"))}
    assert rooms <= MAY_IMPORT.keys()


def test_lower_rooms_import_no_torch():
    files = [f for f in ROOT.rglob("*.py") if _room(_name(f)) in WITHOUT_TORCH]
    names = [_name(f) for f in files]
    code = f"import sys\nfor name in {names!r}:\n    __import__(name)\n"
    code += "    if {'torch', 'transformers'} & set(sys.modules): sys.exit(name)"
    subprocess.run([sys.executable, "-c", code], check=True)


WITHOUT_TORCH_CODE = """
import itertools, sys
import numpy as np
import ngramspec
from ngramspec.costs.engine import LearnedEngineCosts
from ngramspec.engines.rows import Rows, RowState
from ngramspec.engines.vllm import NgramspecProposer
session = ngramspec.build_drafter("auto").start(np.array([5, 6, 7, 8, 5, 6], np.int32))
assert session.propose(2).tokens.tolist() == [7, 8]
drawn = ngramspec.build_drafter("ngram(order=2,sample=true)", policy="priority")
assert len(drawn.start(np.array([5, 6, 5, 6, 5], np.int32)).propose(2).tokens) == 2
rows = Rows("auto", 2, 50, 100, LearnedEngineCosts(2), clock=itertools.count().__next__)
text = np.array([5, 6, 7, 8, 5, 6, 7, 8, 5, 6, 7, 8, 5, 6, 7, 8], np.int32)
drafts = [rows.step([RowState(None, text, n, [1])])[0] for n in range(5, 17)]
assert drafts[-1].tokens.tolist() == [5, 6], drafts[-1]
assert ngramspec.Speculator("copy").options.gamma == "auto"
try:
    ngramspec.generate
except ModuleNotFoundError as error:
    assert "ngramspec.generate needs torch: pip install" in str(error), error
else:
    sys.exit("torch is there")
"""


def test_drafters_and_rows_of_engines_work_where_torch_is_not_installed():
    run_without(["torch", "transformers"], WITHOUT_TORCH_CODE)


WITHOUT_XXHASH = """
import sys
sys.modules["xxhash"] = None
import numpy as np
from ngramspec import Corpus, SharedStore, build_drafter
from ngramspec.cli import main
path, store = sys.argv[1], SharedStore()
store["a"].add(np.arange(9, dtype=np.int32))  # needs none
build_drafter("auto", stores=[store["a"]])
for use in (
    lambda: Corpus.open(path),
    lambda: build_drafter("auto", stores=[path]),
    lambda: store.save(path + ".ngs"),
    lambda: SharedStore.load(sys.argv[2]),
):
    try:
        use()
    except ImportError as error:
        assert "need xxhash: pip install numpy xxhash" in str(error), error
    else:
        sys.exit("xxhash is there")
sys.exit(main(["corpus", "info", path]))
"""


def test_without_xxhash_stores_say_how_to_install_it(tmp_path):
    pytest.importorskip("pydivsufsort")
    corpus, shared = tmp_path / "c.ngc", tmp_path / "s.ngs"
    ngramspec.Corpus.build([np.arange(9, dtype=np.int32)], corpus)
    ngramspec.SharedStore().save(shared)
    command = [sys.executable, "-c", WITHOUT_XXHASH, corpus, shared]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    assert done.stderr.endswith(": files of stores need xxhash: pip install numpy xxhash\n")
    assert done.stderr.count("\n") == 1
    assert sorted(each.name for each in tmp_path.iterdir()) == ["c.ngc", "s.ngs"]


@pytest.mark.parametrize("path", sorted(ROOT.rglob("*.py")), ids=lambda p: str(p.relative_to(ROOT)))
def test_transformers_is_imported_lazily_and_only_at_the_boundary(path):
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        if any(name.split(".")[0] == "transformers" for name in names):
            assert node not in tree.body, f"{path.name} imports transformers when it is imported"
            rooms = {"hf_model", "engines", "server", "wrap", "measure", "cli"}
            assert path.relative_to(ROOT).parts[0] in {*rooms, "hf.py"}


TESTS = Path(__file__).parent
SOURCES = sorted(
    path
    for root in (ROOT, TESTS)
    for path in root.rglob("*.p*")
    if path.suffix in (".py", ".pyx", ".pxi")
)
MOST_LINES, MOST_OF_FUNCTION = 700, 80


def test_no_two_test_files_have_one_name():
    names = [path.name for path in TESTS.rglob("test_*.py")]
    assert len(names) > 100
    assert sorted(set(names)) == sorted(names)


NATIVE_NAME = re.compile(r"^(?:cdef )?(?:class|struct) (\w+)", re.MULTILINE)


def type_names(path: Path) -> set[str]:
    """The names of a file's classes, structs and aliases of types, without private ones."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        return {*NATIVE_NAME.findall(text)}
    found, statements = set[str](), list[ast.AST](ast.parse(text).body)
    for node in statements:
        if isinstance(node, ast.If | ast.Try):
            statements += ast.iter_child_nodes(node)
        elif isinstance(node, ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {each.id for each in targets if isinstance(each, ast.Name)}
    return {name for name in found if re.match(r"[A-Z]\w*[a-z]", name)}


def test_a_type_name_is_one_type():
    owners: dict[str, list[str]] = {}
    for path in ROOT.rglob("*.p*"):
        if path.suffix in (".py", ".pyx", ".pxi"):
            for name in type_names(path):
                owners.setdefault(name, []).append(str(path.relative_to(ROOT)))
    assert {"Row", "Int64", "ValueEngine", "ContextKeys"} <= owners.keys()
    assert {name: files for name, files in owners.items() if len(files) > 1} == {}


def test_files_and_functions_are_short():
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    for path in SOURCES:
        text = path.read_text(encoding="utf-8")
        assert len(text.splitlines()) <= MOST_LINES, path
        for node in ast.walk(ast.parse(text)) if path.suffix == ".py" else ():
            if isinstance(node, functions):
                start = min(each.lineno for each in (node, *node.decorator_list))
                assert node.end_lineno - start < MOST_OF_FUNCTION, f"{path}: {node.name}"


@pytest.mark.parametrize(
    ("module", "engine", "package"),
    [("llama_cpp", "llama_cpp", "llama-cpp-python"), ("mlx_lm", "mlx", "mlx-lm")],
)
def test_without_the_engine_the_error_says_what_to_install(module, engine, package):
    code = f"""
import sys
sys.modules["{engine}"] = sys.modules["torch"] = sys.modules["transformers"] = None
try:
    import ngramspec.engines.{module}
except ImportError as error:
    assert "needs {package}: pip install {package}" in str(error), error
else:
    sys.exit("it was imported")
"""
    subprocess.run([sys.executable, "-c", code], check=True)
