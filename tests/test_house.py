"""The rules of the house, checked on every file that is committed."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

REPOSITORY = Path(__file__).resolve().parent.parent
PACKAGES = {
    "romsim": "romsim",
    "romsim_compiler": "compiler/romsim_compiler",
    "romsim_models": "models/romsim_models",
    "romsim_rtl": "rtl/romsim_rtl",
}
MAX_LINES = 400
BANNED_WORDS = {"utils", "util", "helpers", "helper", "manager", "handler", "info", "misc"}
# A file format's own word may stay: GGUF calls the entry of a tensor its "tensor info".
ALLOWED_CLASSES = {"GgufTensorInfo"}
BANNED_MODULES = BANNED_WORDS | {"data", "common", "tools"}

# Written in pieces, or this file would find itself.
FOREIGN = re.compile(
    "|".join(
        [
            r"(?<![\w.])/(?:work|root|home|Users)/" + r"\w",
            r"py" + r"pi\.org",
            r"python" + r"hosted",
            r"deb\." + r"debian|debian\.org/debian|snapshot\." + r"debian",
            r"npm" + r"js\.",
            r"conda\." + r"anaconda|download\." + r"pytorch",
        ]
    )
)


def tracked_files() -> list[Path]:
    done = subprocess.run(
        ["git", "ls-files", "-z"], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    paths = [REPOSITORY / name for name in done.stdout.split("\0") if name]
    return [path for path in paths if path.is_file()]


def name_of(path: Path) -> str:
    return path.relative_to(REPOSITORY).as_posix()


TRACKED = tracked_files()
MODULES = [
    path
    for path in TRACKED
    if path.suffix == ".py" and any(name_of(path).startswith(f"{p}/") for p in PACKAGES.values())
]
SOURCES = [path for path in TRACKED if path.suffix == ".py"]


def words(name: str) -> set[str]:
    return {word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)}


def listed_names(tree: ast.Module) -> list[str] | None:
    for node in tree.body:
        if isinstance(node, ast.Assign):
            target, value = node.targets[0], node.value
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            target, value = node.target, node.value
        else:
            continue
        if isinstance(target, ast.Name) and target.id == "__all__":
            return [str(name) for name in ast.literal_eval(value)]
    return None


def test_there_is_something_to_check() -> None:
    assert len(MODULES) >= 10
    for name, folder in PACKAGES.items():
        assert (REPOSITORY / folder / "__init__.py") in MODULES, name


def test_no_module_is_longer_than_the_limit() -> None:
    long = {
        name_of(path): n_lines
        for path in SOURCES
        if not name_of(path).startswith("tests/")
        and (n_lines := len(path.read_text().splitlines())) > MAX_LINES
    }
    assert long == {}


def test_no_module_or_class_has_a_name_that_says_nothing() -> None:
    bad = [name_of(path) for path in SOURCES if words(path.stem) & BANNED_MODULES]
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.ClassDef) or node.name in ALLOWED_CLASSES:
                continue
            if words(node.name) & BANNED_WORDS:
                bad.append(f"{name_of(path)}: {node.name}")
    assert not bad, "\n".join(bad)


def test_every_module_lists_its_public_names_and_no_others() -> None:
    faults = []
    for path in MODULES:
        if path.name == "__main__.py":
            continue
        tree = ast.parse(path.read_text())
        names = listed_names(tree)
        if names is None:
            faults.append(f"{name_of(path)} has no __all__")
            continue
        public = {
            node.name
            for node in tree.body
            if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_")
        }
        faults += [f"{name_of(path)}: {one} is not in __all__" for one in public - set(names)]
    assert not faults, "\n".join(faults)


def test_every_module_says_what_it_is_for() -> None:
    silent = [
        name_of(path) for path in MODULES if not ast.get_docstring(ast.parse(path.read_text()))
    ]
    assert silent == []


def test_no_test_is_skipped_without_a_reason() -> None:
    bare = [
        name_of(path)
        for path in SOURCES
        if re.search(r"mark\.(?:skip|xfail)\b(?!if)(?!\([^)]*reason=)", path.read_text())
    ]
    assert bare == []


def test_no_file_names_a_machine_or_a_registry() -> None:
    found = []
    for path in TRACKED:
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue
        found += [
            f"{name_of(path)}:{text[: match.start()].count(chr(10)) + 1}: {match[0]}"
            for match in FOREIGN.finditer(text)
        ]
    assert not found, "\n".join(found)


def test_every_dependency_is_pinned_inside_its_range() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    lines = (REPOSITORY / "constraints.txt").read_text().splitlines()
    pins = dict(line.split("==") for line in lines if line and not line.startswith("#"))
    assert all(re.fullmatch(r"[a-z0-9-]+", name) for name in pins)
    extras = project["project"]["optional-dependencies"]
    requirements = [*project["project"]["dependencies"], *project["build-system"]["requires"]]
    requirements += [line for group in extras.values() for line in group]
    for line in requirements:
        requirement = Requirement(line)
        version = pins[canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(version), line


def test_everything_imported_is_declared() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    lines = project["dependencies"] + [line for group in extras.values() for line in group]
    declared: set[str] = {canonicalize_name(Requirement(line).name) for line in lines}
    declared.add("llvmlite")  # numba's other half, of the one version that numba asks for
    distributions = metadata.packages_distributions()
    undeclared = []
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
                names = [node.module]
            for top in {name.partition(".")[0] for name in names}:
                if top in sys.stdlib_module_names or top in distributions.get("romsim", []):
                    continue
                if top in PACKAGES or (REPOSITORY / top).is_dir():
                    continue
                owners = {canonicalize_name(name) for name in distributions.get(top, [])}
                if not owners & declared:
                    undeclared.append(f"{name_of(path)}: {top}")
    assert not undeclared, "\n".join(undeclared)


def test_every_dependency_says_why_it_is_there() -> None:
    text = (REPOSITORY / "pyproject.toml").read_text()
    body = text[text.index("dependencies = [") : text.index("[project.scripts]")]
    lines = body.splitlines()
    for number, line in enumerate(lines):
        if line.strip().startswith('"'):
            above = lines[number - 1].strip()
            assert re.search(r'",\s+# \w', line) or above.startswith("#"), line


def test_set_up_installs_every_extra_that_tests_need() -> None:
    makefile = (REPOSITORY / "Makefile").read_text()
    match = re.search(r"^EXTRAS := (.*)$", makefile, re.M)
    assert match is not None
    extras = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    # cluster alone is left out: it is for machines of which there are many
    declared = set(extras["project"]["optional-dependencies"]) - {"cluster"}
    assert set(match[1].split(",")) == declared


def test_imports_keep_to_the_layers() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "from importlinter.cli import lint_imports_command as run; run()"],
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([".", "compiler", "models", "rtl"])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"Contracts: \d+ kept, 0 broken\.", done.stdout)


@pytest.mark.parametrize("command", [["check"], ["format", "--check"]])
def test_ruff_has_nothing_to_say(command: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "ruff", *command, "--quiet", *map(name_of, SOURCES)],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_mypy_has_nothing_to_say() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mypy"], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def wheel_names(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Build the wheel from what is committed, so that nothing that lies about gets in."""
    source = tmp_path_factory.mktemp("source")
    for path in TRACKED:
        copy = source / path.relative_to(REPOSITORY)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(path.read_bytes())
    out = tmp_path_factory.mktemp("wheel")
    command = ["wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(out)]
    subprocess.run(
        [sys.executable, "-m", "pip", *command, str(source)],
        capture_output=True,
        text=True,
        check=True,
    )
    (wheel,) = out.glob("romsim-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return archive.namelist()


def test_wheel_holds_exactly_the_four_packages(wheel_names: list[str]) -> None:
    tops = {name.split("/")[0] for name in wheel_names}
    assert {top for top in tops if not top.endswith(".dist-info")} == set(PACKAGES)
    assert len(tops) == len(PACKAGES) + 1


def test_wheel_holds_every_module_and_data_file(wheel_names: list[str]) -> None:
    expected = set()
    for path in TRACKED:
        for package, folder in PACKAGES.items():
            if path.is_relative_to(REPOSITORY / folder):
                inside = path.relative_to(REPOSITORY / folder).as_posix()
                expected.add(f"{package}/{inside}")
    assert {f"{package}/py.typed" for package in PACKAGES} <= expected
    packed = {name for name in wheel_names if ".dist-info/" not in name}
    assert packed == expected


def test_wheel_installs_the_command(wheel_names: list[str]) -> None:
    assert any(name.endswith(".dist-info/entry_points.txt") for name in wheel_names)
