"""What `make package` makes, in empty environments: the tarball unpacked into an empty folder, the wheel and the source distribution installed
where there is only pip.

FIRKIN_SOURCE_DIR is the repository, FIRKIN_BINARY_DIR a build of it, FIRKIN_PYTHON its Python, CMAKE_COMMAND its CMake. FIRKIN_PACKAGES names
the folder of packages that are there already, FIRKIN_PACKAGE_PYTHON the Python to install the source distribution with.
"""

import email
import importlib.metadata
import os
import pathlib
import re
import subprocess
import sys
import tomllib
import unittest
import zipfile

from commands import BUILD_DEADLINE_S, CMAKE, SOURCE, checked, environment, run
from folders import folder_until
from ports import reserved_port

PYTHON = os.environ.get("FIRKIN_PACKAGE_PYTHON", sys.executable)
VERSION = re.search(r"project\(firkin VERSION ([\d.]+)", (SOURCE / "CMakeLists.txt").read_text())[1]

PROJECT = """cmake_minimum_required(VERSION 3.25)
project(app LANGUAGES CXX)
find_package(firkin CONFIG REQUIRED)
add_executable(app app.cpp)
target_link_libraries(app PRIVATE firkin::ddp)
"""
# What README.md leaves to its reader, around its lines.
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


# Packages are tried here, not timed, and compiling them as they are shipped takes twice as long. The wheel and what is installed from the source
# distribution are built alike, with its own headers and in its own folder, so that ccache compiles one of them.
OWN_HEADERS = [f"-DCMAKE_DISABLE_FIND_PACKAGE_{name}=ON" for name in ("fmt", "nlohmann_json", "CLI11")]
QUICK = {"SKBUILD_CMAKE_ARGS": ";".join(["-DCMAKE_CXX_FLAGS_RELEASE=-O0", *OWN_HEADERS]), "SKBUILD_BUILD_DIR": "build"}
BENCH = ("bench", "allreduce", "--ranks", "2", "--begin", "1K", "--end", "4K", "--time", "0.2")  # needs LibTorch


def setUpModule():
    global PACKAGES, FOLDER, ELSEWHERE
    FOLDER = folder_until(unittest.addModuleCleanup)
    ELSEWHERE = FOLDER / "elsewhere" / "torch"
    PACKAGES = pathlib.Path(os.environ.get("FIRKIN_PACKAGES", FOLDER / "packages"))
    if not PACKAGES.exists():
        settings = {"FIRKIN_BUILD": os.environ["FIRKIN_BINARY_DIR"], "FIRKIN_PYTHON": os.environ["FIRKIN_PYTHON"]} | QUICK
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
        """The program where LibTorch is not where it was built with: an empty folder lies over that, and ELSEWHERE is what it was."""
        ELSEWHERE.mkdir(parents=True, exist_ok=True)
        beside = pathlib.Path(self.libtorch).parent / "nvidia"  # what a CUDA build of LibTorch loads from beside itself
        if beside.exists() and not (ELSEWHERE.parent / "nvidia").exists():
            (ELSEWHERE.parent / "nvidia").symlink_to(beside)
        script = 'mount --bind "$0" "$1" && mount -t tmpfs none "$0" && shift && exec "$@"'
        hidden = ["unshare", "--mount", "sh", "-c", script, self.libtorch, ELSEWHERE]
        if os.geteuid() != 0 or run(*hidden, "true").returncode != 0:
            self.skipTest("may not mount here")
        return run(*hidden, self.firkin, *words, **variables)

    def test_without_a_libtorch_it_says_so_in_one_line(self):
        self.assertEqual(self.without_its_libtorch("buckets").returncode, 0)  # needs none
        result = self.without_its_libtorch(*BENCH, "--out", FOLDER / "without", FIRKIN_PYTHON="/bin/false")
        self.assertEqual((result.returncode, result.stdout, result.stderr.count("\n")), (2, "", 1), result)
        self.assertIn(f"not in {self.libtorch}", result.stderr)

    def test_it_runs_with_a_libtorch_elsewhere(self):
        result = self.without_its_libtorch(*BENCH, "--out", FOLDER / "with", FIRKIN_LIBTORCH=ELSEWHERE)
        self.assertEqual(result.returncode, 0, result)

    def test_a_project_of_its_own_builds_the_lines_of_the_readme_and_runs_them(self):
        project = FOLDER / "app"
        project.mkdir()
        (project / "CMakeLists.txt").write_text(PROJECT)
        lines = re.search(r"```cpp\n(.*?)```", (SOURCE / "README.md").read_text(), re.DOTALL)[1].splitlines()
        (project / "app.cpp").write_text(PROGRAM.replace("STATEMENTS", "\n".join(lines)))
        settings = {"CMAKE_PREFIX_PATH": self.prefix, "CMAKE_CXX_COMPILER": os.environ.get("CMAKE_CXX_COMPILER", "c++")}
        checked(CMAKE, "-S", project, "-B", project / "build", *(f"-D{name}={value}" for name, value in settings.items()))
        checked(CMAKE, "--build", project / "build", deadline_s=BUILD_DEADLINE_S)
        app = project / "build/app"

        with reserved_port() as port:
            launched = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
            other = subprocess.Popen([app], env=environment(RANK="1", **launched), stdout=subprocess.DEVNULL)
            try:
                self.assertEqual(checked(app, RANK="0", **launched), "2 ranks, equal parameters: 1\n")
                self.assertEqual(other.wait(timeout=60), 0)
            finally:
                other.kill()


class PythonPackage(unittest.TestCase):
    def empty_environment(self, name: str, python: str) -> pathlib.Path:
        """An environment that has only pip."""
        checked(python, "-m", "venv", FOLDER / name)
        return FOLDER / name / "bin"

    def assert_runs(self, scripts: pathlib.Path):
        self.assertEqual(checked(scripts / "firkin", "--version"), f"{VERSION}\n")
        self.assertEqual(checked(scripts / "python", "-c", "import firkin; print(firkin.__version__)"), f"{VERSION}\n")
        checked(scripts / "python", "-B", SOURCE / "tests/run.py", SOURCE / "tests/python/planning_test.py")

    def test_the_wheel_is_for_many_systems_and_has_a_page_of_its_own(self):
        self.assertRegex(only("*.whl").name, r"-manylinux_2_\d+_\w+\.whl$")
        with zipfile.ZipFile(only("*.whl")) as wheel:
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
        checked(scripts / "python", "-m", "pip", "install", "--no-index", only("*.whl"))
        self.assert_runs(scripts)

    def test_the_wheel_tunes_a_script_where_there_are_only_pip_and_torch(self):
        scripts = self.empty_environment("of-wheel-and-torch", sys.executable)
        site = pathlib.Path(checked(scripts / "python", "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
        for file in torch_and_what_it_needs():  # links to the torch that is here
            if not (site / file.name).exists():
                (site / file.name).symlink_to(file)
        checked(scripts / "python", "-m", "pip", "install", "--no-index", only("*.whl"))
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
