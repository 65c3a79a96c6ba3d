"""What `make package` makes, in empty environments: the tarball unpacked into an empty folder, the wheels and the source distribution installed
where there is only pip, the wheels also by a user without root and without a compiler.

FIRKIN_SOURCE_DIR is the repository, FIRKIN_BINARY_DIR a build of it, FIRKIN_PYTHON its Python, CMAKE_COMMAND its CMake. FIRKIN_PACKAGES names
the folder of packages that are there already, FIRKIN_PACKAGE_PYTHON the Python to install the source distribution with. Without that folder
only the wheel of this Python is made, or those of FIRKIN_PYTHONS: each takes minutes.
"""

import email
import importlib.metadata
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tomllib
import unittest
import zipfile

import pytest
from commands import BUILD_DEADLINE_S, CMAKE, RUN_DEADLINE_S, SOURCE, checked, environment, run
from folders import folder_until
from ports import reserved_port

PYTHON = os.environ.get("FIRKIN_PACKAGE_PYTHON", sys.executable)
pytestmark = pytest.mark.timeout(2600)  # the first test waits for all packages
TUTORIAL = (SOURCE / "docs/tutorial_cpp.md").read_text()
VERSION = re.search(r"project\(firkin VERSION ([\d.]+)", (SOURCE / "CMakeLists.txt").read_text())[1]

# What docs/data_parallel.md leaves to its reader, around its lines.
PROGRAM = """#include <torch/torch.h>

#include <cstdio>
#include <vector>

#include <firkin/comm/process_group.h>
#include <firkin/ddp/data_parallel.h>

struct NetImpl : torch::nn::Module {
  torch::nn::Linear layer = register_module("layer", torch::nn::Linear(2, 1));
  at::Tensor forward(const at::Tensor& x) { return layer->forward(x); }
};
TORCH_MODULE(Net);
struct Batch {
  at::Tensor x, y;
};
at::Tensor loss(const at::Tensor& guess, const at::Tensor& y) { return torch::mse_loss(guess, y); }

int main() {
  const std::vector<Batch> batches(4, {torch::ones({8, 2}), torch::zeros({8, 1})});
  Net net;
  torch::optim::SGD optimizer(net->parameters(), 0.1);
STATEMENTS
  at::Tensor sum = net->layer->weight.detach().clone();
  firkin::all_reduce(group, sum);
  std::printf("%d ranks, equal parameters: %d\\n", group.size, at::allclose(sum, net->layer->weight * group.size));
}
"""
# A training with a flag of its own.
SCRIPT = """import argparse

import torch


def build():
    parser = argparse.ArgumentParser()
    parser.add_argument("--my-flag", action="store_true", required=True)
    print(parser.parse_args())
    model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(4)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step(model):
        optimizer.zero_grad()
        model(torch.ones(2, 64)).square().mean().backward()
        optimizer.step()

    return model, step
"""


def torch_and_what_it_needs() -> set[pathlib.Path]:
    """What lies in site-packages of them."""
    files, done, wanted = set(), set(), ["torch"]
    while wanted:
        name = re.match(r"[\w.-]+", wanted.pop())[0]
        if name in done:
            continue
        done.add(name)
        package = importlib.metadata.distribution(name)
        files |= {pathlib.Path(package.locate_file(file.parts[0])) for file in package.files if file.parts[0] != ".."}
        wanted += [needed for needed in package.requires or () if ";" not in needed]
    return files


# Packages are tried here, not timed, and compiling them as they are shipped takes twice as long. The wheels and what is installed from the source
# distribution are built alike, in a folder of its own, so that ccache compiles one of them.
QUICK = {"SKBUILD_CMAKE_ARGS": "-DCMAKE_CXX_FLAGS_RELEASE=-O0", "SKBUILD_BUILD_DIR": "build"}
VERSIONS = ("3.10", "3.11", "3.12", "3.13")  # those that the package names
NOBODY = 65534
BENCH = ("bench", "allreduce", "--ranks", "2", "--begin", "1K", "--end", "4K", "--time", "0.2s")  # needs LibTorch


def setUpModule():
    global PACKAGES, FOLDER, ELSEWHERE
    FOLDER = folder_until(unittest.addModuleCleanup)
    ELSEWHERE = FOLDER / "elsewhere" / "torch"
    PACKAGES = pathlib.Path(os.environ.get("FIRKIN_PACKAGES", FOLDER / "packages"))
    if not PACKAGES.exists():
        settings = {"FIRKIN_BUILD": os.environ["FIRKIN_BINARY_DIR"], "FIRKIN_PYTHON": os.environ["FIRKIN_PYTHON"],
                    "FIRKIN_PYTHONS": os.environ.get("FIRKIN_PYTHONS", sys.executable)} | QUICK  # fmt: skip
        checked(SOURCE / "tools/package", PACKAGES, deadline_s=2 * BUILD_DEADLINE_S, **settings)


def only(pattern: str) -> pathlib.Path:
    """The one package of that name."""
    (package,) = PACKAGES.glob(pattern)
    return package


class Tarball(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        (FOLDER / "empty").mkdir()
        checked("tar", "-xf", only(f"firkin-{VERSION}-torch*.tar.gz"), "-C", FOLDER / "empty")
        (cls.prefix,) = (FOLDER / "empty").iterdir()
        cls.firkin = cls.prefix / "bin/firkin"
        script = cls.prefix / "libexec/firkin/with-libtorch"
        cls.libtorch = pathlib.Path(re.search(r"^built_with='(.*)'$", script.read_text(), re.MULTILINE)[1])

    def test_holds_program_headers_libraries_and_data_alone(self):
        self.assertEqual({folder.name for folder in self.prefix.iterdir()}, {"bin", "include", "lib", "libexec", "share"})
        self.assertEqual([file.name for file in (self.prefix / "bin").iterdir()], ["firkin"])
        self.assertTrue((self.prefix / "share/doc/firkin/THIRD_PARTY_NOTICES").exists())

    def test_its_program_runs(self):
        self.assertEqual(checked(self.firkin, "--version"), f"{VERSION}\n")
        checked(self.firkin, *BENCH, "--out", FOLDER / "allreduce")
        self.assertTrue((FOLDER / "allreduce/report.html").exists())

    def without_its_libtorch(self, *words, **variables) -> subprocess.CompletedProcess:
        """A command where LibTorch is not where it was built with: an empty folder lies over that, and ELSEWHERE is what it was."""
        ELSEWHERE.mkdir(parents=True, exist_ok=True)
        beside = pathlib.Path(self.libtorch).parent / "nvidia"  # what a CUDA build of LibTorch loads from beside itself
        if beside.exists() and not (ELSEWHERE.parent / "nvidia").exists():
            (ELSEWHERE.parent / "nvidia").symlink_to(beside)
        script = 'mount --bind "$0" "$1" && mount -t tmpfs none "$0" && shift && exec "$@"'
        hidden = ["unshare", "--mount", "sh", "-c", script, self.libtorch, ELSEWHERE]
        if os.geteuid() != 0 or run(*hidden, "true").returncode != 0:
            self.skipTest("may not mount here")
        return run(*hidden, *words, **variables)

    def test_it_runs_with_a_libtorch_elsewhere(self):
        result = self.without_its_libtorch(self.firkin, *BENCH, "--out", FOLDER / "with", FIRKIN_LIBTORCH=ELSEWHERE)
        self.assertEqual(result.returncode, 0, result)

    def built(self, name: str, main: str) -> pathlib.Path:
        """The program that the tutorial's CMakeLists.txt makes of this main.cpp."""
        project = FOLDER / name
        project.mkdir()
        (cmake,) = re.findall(r"```cmake\n(.*?)```", TUTORIAL, re.DOTALL)
        (project / "CMakeLists.txt").write_text(cmake)
        (project / "main.cpp").write_text(main)
        settings = {"CMAKE_PREFIX_PATH": self.prefix, "CMAKE_CXX_COMPILER": os.environ.get("CMAKE_CXX_COMPILER", "c++")}
        checked(CMAKE, "-S", project, "-B", project / "build", *(f"-D{name}={value}" for name, value in settings.items()))
        checked(CMAKE, "--build", project / "build", deadline_s=BUILD_DEADLINE_S)
        return project / "build/app"

    def test_the_tutorials_program_trains_and_says_what_is_wrong_in_one_line(self):
        program, own_main = (re.search(rf"```cpp\n({start}.*?)```", TUTORIAL, re.DOTALL)[1] for start in ("#include <torch/torch.h>", "int main"))
        losses = checked(self.built("tutorial", program), "--ranks", "2").splitlines()
        self.assertEqual([line.split()[0] for line in losses], [str(step) for step in range(10)])
        alone = run(self.built("own_main", program[: program.index("int main")] + own_main))
        self.assertEqual((alone.returncode, len(alone.stderr.splitlines())), (1, 1), alone)
        self.assertTrue(alone.stderr.startswith("app: no launcher started this process"), alone)

    def test_a_project_of_its_own_runs_the_lines_of_the_documentation(self):
        lines = re.search(r"```cpp\n(.*?)```", (SOURCE / "docs/data_parallel.md").read_text(), re.DOTALL)[1].splitlines()
        app = self.built("app", PROGRAM.replace("STATEMENTS", "\n".join(lines)))

        with reserved_port() as port:
            launched = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
            other = subprocess.Popen([app], env=environment(RANK="1", **launched), stdout=subprocess.DEVNULL)
            try:
                self.assertEqual(checked(app, RANK="0", **launched), "2 ranks, equal parameters: 1\n")
                self.assertEqual(other.wait(timeout=60), 0)
            finally:
                other.kill()
        with self.subTest("LibTorch lies elsewhere"):
            alone = {"WORLD_SIZE": "1", "RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
            self.assertNotEqual(self.without_its_libtorch(app, **alone).returncode, 0)
            found = self.without_its_libtorch(app, LD_LIBRARY_PATH=ELSEWHERE / "lib", **alone)
            self.assertEqual(found.stdout, "1 ranks, equal parameters: 1\n", found)


class PythonPackage(unittest.TestCase):
    def empty_environment(self, name: str, python: str) -> pathlib.Path:
        """An environment that has only pip."""
        checked(python, "-m", "venv", FOLDER / name)
        return FOLDER / name / "bin"

    def assert_runs(self, scripts: pathlib.Path):
        self.assertEqual(checked(scripts / "firkin", "--version"), f"{VERSION}\n")
        self.assertEqual(checked(scripts / "python", "-c", "import firkin; print(firkin.__version__)"), f"{VERSION}\n")
        checked(scripts / "python", "-B", "-m", "unittest", "planning_test", cwd=SOURCE / "tests/python", PYTHONPATH=SOURCE / "tests")

    def test_wheels_are_for_many_systems_and_have_a_page_of_their_own(self):
        wheels = list(PACKAGES.glob("*.whl"))
        for wheel in wheels:
            self.assertRegex(wheel.name, r"-(cp310-cp310|cp311-cp311|cp312-abi3)-manylinux_2_\d+_\w+\.whl$")
        with zipfile.ZipFile(wheels[0]) as wheel:
            (name,) = (name for name in wheel.namelist() if name.endswith("METADATA"))
            page = email.message_from_bytes(wheel.read(name))
        self.assertEqual((page["Author"], page["Description-Content-Type"]), ("The authors of Firkin", "text/markdown"))
        self.assertIn("firkin.tune(model, step)", page.get_payload())
        self.assertEqual(re.findall(r"\]\((?!https:)", page.get_payload()), [])  # links go nowhere from there
        self.assertIn("Operating System :: POSIX :: Linux", page.get_all("Classifier"))

    def test_other_systems_than_linux_are_refused_in_a_line(self):
        for system in ("Darwin", "Windows"):
            refused = run(CMAKE, "-S", SOURCE, "-B", FOLDER / system, f"-DCMAKE_SYSTEM_NAME={system}")
            self.assertNotEqual(refused.returncode, 0)
            self.assertIn(f"Firkin runs on Linux; this is {system}", refused.stderr)

    def test_the_wheel_installs_where_there_is_only_pip(self):
        scripts = self.empty_environment("of-wheel", sys.executable)
        checked(scripts / "python", "-m", "pip", "install", "--no-index", "--find-links", PACKAGES, "--only-binary", ":all:", "firkin")
        self.assert_runs(scripts)

    def test_the_wheel_tunes_a_script_where_there_are_only_pip_and_torch(self):
        scripts = self.empty_environment("of-wheel-and-torch", sys.executable)
        site = pathlib.Path(checked(scripts / "python", "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
        for file in torch_and_what_it_needs():  # links to the torch that is here
            if not (site / file.name).exists():
                (site / file.name).symlink_to(file)
        checked(scripts / "python", "-m", "pip", "install", "--no-index", "--find-links", PACKAGES, "--only-binary", ":all:", "firkin")
        self.assertEqual(checked(scripts / "python", "-c", "import importlib.util as u; print(u.find_spec('numpy'))"), "None\n")
        (FOLDER / "script.py").write_text(SCRIPT)
        torchrun = [scripts / "python", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        words = ["-m", "firkin.tune", "script.py:build", "--time-budget-s", "1", "--", "--my-flag"]
        said = checked(*torchrun, *words, cwd=FOLDER, GLOO_SOCKET_IFNAME="lo")
        self.assertIn("Namespace(my_flag=True)", said)
        self.assertRegex(said, r"(?m)^ +paste +DistributedDataParallel\(model.*\)$")
        self.assertTrue((FOLDER / "firkin-out/tune/report.html").exists())

    def test_the_source_distribution_installs_where_there_is_only_pip_and_brings_its_headers(self):
        scripts = self.empty_environment("of-sdist", PYTHON)
        pip = [scripts / "python", "-m", "pip"]
        needed = tomllib.loads((SOURCE / "pyproject.toml").read_text())["build-system"]["requires"]
        fetched = run(*pip, "download", "--quiet", "--dest", FOLDER / "needed", *needed, deadline_s=BUILD_DEADLINE_S)
        if fetched.returncode != 0:
            self.skipTest(f"what it is built with cannot be had here: {fetched.stderr.strip().splitlines()[-1]}")
        sdist = only(f"firkin-{VERSION}.tar.gz")
        checked(*pip, "install", "--no-index", "--find-links", FOLDER / "needed", sdist, deadline_s=BUILD_DEADLINE_S, **QUICK)
        self.assert_runs(scripts)


def pythons() -> dict[str, str]:
    """Version -> a Python of it that runs here."""
    found = {}
    for version in VERSIONS:
        candidates = [f"python{version}", *map(str, pathlib.Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))]
        runs = (python for python in candidates if shutil.which(python) and run(python, "-c", "").returncode == 0)
        if python := next(runs, None):
            found[version] = python
    return found


class WithoutRootAndCompiler(unittest.TestCase):
    """The wheels, installed and run by a user who is not root, with no program in PATH but those of their environment."""

    def as_user(self, *words, **variables) -> subprocess.CompletedProcess:
        user = {"user": NOBODY, "group": NOBODY, "extra_groups": []} if os.geteuid() == 0 else {}
        return subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=RUN_DEADLINE_S, cwd=self.home,
                              env={"HOME": str(self.home), "PATH": ""} | variables, **user)  # fmt: skip

    def python_of_user(self, version: str, python: str) -> tuple[pathlib.Path, dict[str, str]]:
        """A Python that the user may run, with the variables that it needs: a copy of one that only root may read."""
        prefix = pathlib.Path(checked(python, "-c", "import sys; print(sys.base_prefix)").strip())
        try:
            if self.as_user(prefix / f"bin/python{version}", "-c", "").returncode == 0:
                return prefix / f"bin/python{version}", {}
        except PermissionError:
            pass
        ignored = shutil.ignore_patterns("test", "site-packages", "__pycache__", "share", "config-*")
        copy = shutil.copytree(prefix, self.home / "python", symlinks=True, ignore=ignored)
        return copy / f"bin/python{version}", {"LD_LIBRARY_PATH": str(copy / "lib")}

    def test_a_wheel_installs_and_plans_on_every_version_of_python_that_it_is_for(self):
        available = pythons()
        tags = {re.search(r"-(cp\d+)-", wheel.name)[1] for wheel in PACKAGES.glob("*.whl")}
        for version in VERSIONS:
            with self.subTest(version=version):
                if version not in available:
                    self.skipTest(f"no Python {version} here")
                if f"cp{version.replace('.', '')}" not in tags and not ("cp312" in tags and version > "3.12"):
                    self.skipTest(f"no wheel for Python {version} was made")
                self.home = folder_until(self.addCleanup)
                shutil.copytree(PACKAGES, self.home / "packages", ignore=lambda _, names: [name for name in names if not name.endswith(".whl")])
                shutil.copytree(SOURCE / "tests/fuzz/corpus/trace", self.home / "tests/fuzz/corpus/trace")
                (self.home / "tests/python").mkdir()
                for file in ("tests/folders.py", "tests/python/planning_test.py"):
                    shutil.copy(SOURCE / file, self.home / file)
                self.home.chmod(0o777)
                python, variables = self.python_of_user(version, available[version])
                variables["PYTHONPATH"] = f"{self.home}/tests:{self.home}/tests/python"
                scripts = self.home / "environment/bin"
                for words in (
                    [python, "-m", "venv", "environment"],
                    [scripts / "python", "-m", "pip", "install", "--no-index", "--find-links", "packages", "--only-binary", ":all:", "firkin"],
                    [scripts / "firkin", "buckets"],
                    [scripts / "python", "-B", "-m", "unittest", "planning_test"],
                ):
                    result = self.as_user(*words, **variables)
                    self.assertEqual(result.returncode, 0, result)
