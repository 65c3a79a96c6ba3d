"""The sources as a part of another project's build: add_subdirectory and FetchContent, with that project's own settings.

FIRKIN_SOURCE_DIR is the repository, FIRKIN_PYTHON a Python with torch; CMAKE_COMMAND and CMAKE_CXX_COMPILER are those of the build.
"""

import os
import sys

from commands import BUILD_DEADLINE_S, CMAKE, SOURCE, checked, run
from folders import InAFolder

PLAN = """#include <firkin/plan/bucket_plan.h>

#include <cstdio>
#include <vector>

int main() {
  firkin::CapOptions options;
  options.cap_bytes = 100;
  std::printf("%d buckets\\n", static_cast<int>(firkin::assign_buckets(std::vector<int64_t>{60, 60, 30}, options).buckets.size()));
}
"""
TRAINED = """#include <firkin/comm/run_ranks.h>
#include <firkin/ddp/data_parallel.h>
#include <torch/torch.h>

#include <cstdio>

int main(int argc, char** argv) {
  return firkin::run_ranks(argc, argv, [](const firkin::ProcessGroup& group, const auto&) {
    auto net = torch::nn::Linear(2, 1);
    const firkin::DataParallel ddp(*net, group);
    net->forward(torch::ones({4, 2}) * (group.rank + 1)).sum().backward();
    if (group.rank == 0) std::printf("mean gradient %g\\n", net->weight.grad()[0][0].item<double>());
    return 0;
  });
}
"""


class Subproject(InAFolder):
    def configure(self, program, library, commands, **settings):
        (self.folder / "app.cpp").write_text(program)
        (self.folder / "CMakeLists.txt").write_text(
            "cmake_minimum_required(VERSION 3.25)\nproject(app VERSION 7.0 LANGUAGES CXX)\nset(CMAKE_CXX_STANDARD 20)\n"
            f"{commands}\nadd_executable(app app.cpp)\ntarget_link_libraries(app PRIVATE {library})\n"
        )
        settings |= {"CMAKE_CXX_COMPILER": os.environ.get("CMAKE_CXX_COMPILER", "c++"), "CMAKE_UNITY_BUILD": "ON", "CMAKE_UNITY_BUILD_BATCH_SIZE": "32"}
        words = ["-S", self.folder, "-B", self.out, "-G", "Ninja", *(f"-D{name}={value}" for name, value in settings.items())]
        checked(CMAKE, *words, deadline_s=BUILD_DEADLINE_S)

    def built(self):
        checked(CMAKE, "--build", self.out, deadline_s=3 * BUILD_DEADLINE_S)
        return self.out / "app"

    def test_fetched_it_plans_without_libtorch_or_any_wheel(self):
        fetch = f"include(FetchContent)\nFetchContent_Declare(firkin SOURCE_DIR {SOURCE})\nFetchContent_MakeAvailable(firkin)"
        bare = self.folder / "bare"
        checked(sys.executable, "-m", "venv", "--without-pip", bare)
        self.configure(PLAN, "firkin::plan", fetch, FIRKIN_WITH_TORCH="OFF", FIRKIN_PYTHON=bare / "bin/python")
        self.assertEqual(checked(self.built()), "2 buckets\n")
        self.assertEqual([path.name for path in self.out.rglob("libfirkin_report.a")], [], "nothing links it")
        self.assertEqual(list(self.out.glob("firkin")), [], "the program is not built")
        settings = (self.out / "CMakeCache.txt").read_text()
        self.assertIn("CMAKE_BUILD_TYPE:STRING=\n", settings)
        self.assertIn("Total Tests: 0", run(CMAKE.replace("cmake", "ctest"), "--test-dir", self.out, "-N").stdout)

    def test_as_a_subdirectory_it_trains(self):
        commands = f"add_subdirectory({SOURCE} firkin)"
        self.configure(TRAINED, "firkin::ddp", commands, FIRKIN_PYTHON=os.environ["FIRKIN_PYTHON"])
        self.assertEqual(checked(self.built(), "--ranks", "2"), "mean gradient 6\n")

    def test_vegas_javascript_may_be_a_file(self):
        bundle, page = self.folder / "vega.js", self.folder / "page.html"
        bundle.write_text("window.vegaEmbed = 'of the file';")
        checked(sys.executable, "-m", "venv", "--without-pip", self.folder / "bare")
        python = self.folder / "bare/bin/python"
        words = [CMAKE, "-S", SOURCE, "-G", "Ninja", "-DFIRKIN_WITH_TORCH=OFF", "-DFIRKIN_BUILD_TESTS=OFF", f"-DFIRKIN_PYTHON={python}"]
        checked(*words, "-B", self.folder / "with", f"-DFIRKIN_VEGA_BUNDLE={bundle}")
        self.assertIn(str(bundle), (self.folder / "with/build.ninja").read_text())
        checked(python, SOURCE / "src/report/assemble_report_page.py", SOURCE / "src/report/page.html", SOURCE / "THIRD_PARTY_NOTICES", page, bundle)
        self.assertIn("window.vegaEmbed = 'of the file';", page.read_text())
        result = run(*words, "-B", self.folder / "without")
        self.assertNotEqual(result.returncode, 0)
        self.assertIn("-DFIRKIN_VEGA_BUNDLE=FILE", "".join(result.stderr.split()))
