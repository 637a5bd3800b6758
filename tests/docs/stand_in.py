"""stand_in.py NAME WORD...: stands in for the program NAME while commands.py runs the documentation's commands: refuses options,
names and values that the real one would not take, and does nothing else. What is wrong goes to the file STAND_IN_ERRORS as well."""

import json
import os
import pathlib
import re
import subprocess
import sys

NAME, WORDS = sys.argv[1], sys.argv[2:]
ROOT = pathlib.Path(os.environ["STAND_IN_ROOT"])
FOLDERS = [pathlib.Path(folder) for folder in os.environ["STAND_IN_FOLDERS"].split(":")]
BUILD = FOLDERS[0].parent
ERRORS = pathlib.Path(os.environ["STAND_IN_ERRORS"])
TEST_PROGRAMS = ("test_torch", "numerics")

# Options of launchers, and how many words follow each.
LAUNCHERS = {
    "mpiexec": {"-n": 1, "-f": 1, "-hosts": 1, "-ppn": 1, "-genvall": 0, "-disable-auto-cleanup": 0},
    "mpirun": {"-np": 1, "-N": 1, "--hostfile": 1},
    "srun": dict.fromkeys(("--nodes", "--ntasks-per-node", "--mpi", "--export", "--distribution", "--gpu-bind",
                           "--cpus-per-task"), 0),
    "sbatch": {"--signal": 0},
}


def refuse(text):
    with open(ERRORS, "a") as errors:
        errors.write(f"{NAME}: {text}\n")
    sys.exit(1)


def output(*words):
    """Of the real programs."""
    environment = {**os.environ, "PATH": os.environ["STAND_IN_PATH"]}
    return subprocess.run([str(word) for word in words], env=environment, capture_output=True, text=True)


def launch():
    words = list(WORDS)
    if words == ["--version"]:
        return print("HYDRA build details:")
    while words and words[0].startswith("-"):
        option = words.pop(0).split("=")[0]
        if option not in LAUNCHERS[NAME]:
            refuse(f"this launcher has no option {option}, or stand_in.py does not know it")
        del words[: LAUNCHERS[NAME][option]]
    if NAME == "sbatch" and words:
        words.insert(0, "bash")
        os.environ.update(SLURM_SUBMIT_DIR=".", SLURM_JOB_ID="1", SLURM_CPUS_PER_TASK="1")
    if words:
        sys.exit(subprocess.run(words).returncode)


def help_of(real, subcommand):
    """What --help says, which a program with libtorch needs a third of a second for: kept."""
    path = ERRORS.with_name("help of " + " ".join([NAME, *subcommand]))
    if not path.exists():
        path.write_text(output(real, *subcommand, "--help").stdout)
    return path.read_text()


def program(real):
    """Its own parser judges values, but of words that stand for others: FOLDER."""
    known = help_of(real, WORDS[:1] if NAME == "autopar" else [])
    own = WORDS[: WORDS.index("--")] if "--" in WORDS else WORDS  # behind it another program's
    options = [word.split("=")[0] for word in own if word.startswith("--")]
    for option in options:
        if not re.search(rf"(^|[\s,]){option}(?![\w-])", known):
            refuse(f"--help does not know {option}")
    if len(options) == len(own) or any(re.fullmatch(r"[A-Z_]+", word) for word in own):
        return
    done = output(real, *own, "--help")
    if done.returncode != 0:
        refuse(done.stdout + done.stderr)


def source():
    """A script, or a program that is not built here: there is its source, and of scripts, benchmarks and tests their options stand
    in one (scripts hand them on). Examples have theirs from several files, and are built where they can be."""
    names = (f"/{NAME}", f"/{NAME}.cpp", f"/{NAME}/main.cpp")
    of_folder = {folder: [path for path in (ROOT / folder).rglob("*.*") if path.suffix in (".cpp", ".hpp", ".py", ".sh")]
                 for folder in ("examples", "benchmarks", "tests")}
    folders = [folder for folder, paths in of_folder.items() if any(str(path).endswith(names) for path in paths)]
    if NAME == "autopar" or "examples" in folders:
        return
    if NAME in TEST_PROGRAMS:
        folders = ["tests"]
    if not folders:
        refuse("there is no such file")
    paths = of_folder[folders[0]]
    text = "--filenames-as-tags" + "".join(f"[#{path.stem}]" + path.read_text() for path in paths)
    for word in WORDS:
        if word.startswith(("--", "[")) and word.split("=")[0] not in text:
            refuse(f"{word} is not in its source")


def preset(kind, name):
    if name not in [each["name"] for each in json.loads((ROOT / "CMakePresets.json").read_text())[kind]]:
        refuse(f"there is no preset {name}")


def cmake():
    if WORDS[:2] == ["--workflow", "--preset"]:
        preset("workflowPresets", WORDS[2])
    elif WORDS[0] == "--build":
        targets = WORDS[WORDS.index("--target") + 1 :] if "--target" in WORDS else []
        known = output("cmake", "--build", BUILD, "--target", "help").stdout if targets else ""
        for target in targets:
            if not re.search(rf"^(\.\.\. )?{target}\b", known, re.M):
                refuse(f"there is no target {target}")
    elif WORDS[0] != "--install":
        refuse(f"stand_in.py does not know {WORDS}")


def ctest():
    words = list(WORDS)
    if words[0] == "--preset":
        preset("testPresets", words[1])
        del words[:2]
    if "\nTotal Tests: 0" in output("ctest", "--test-dir", BUILD, "-N", *words).stdout:
        refuse("no test has this name or label")


def python3():
    if WORDS[0] == "-c":
        compile(WORDS[1], "-c", "exec")
    elif not (ROOT / WORDS[0]).exists():
        refuse(f"there is no {WORDS[0]}")


def apt_get():
    known = (ROOT / "cmake/quickstart.sh").read_text().split()
    for package in WORDS[1:]:
        if package not in known:
            refuse(f"the quickstart does not install {package}")


def require_options_in_environment():
    given = [name for name in os.environ if name.startswith("AUTOPAR_")]
    sources = "".join(path.read_text() for path in ROOT.glob("src/*/*.cpp")) if given else ""
    for name in given:
        if f'"{name.removeprefix("AUTOPAR_").lower()}"' not in sources:
            refuse(f"there is no option {name}")


def main():
    require_options_in_environment()
    tools = {"cmake": cmake, "ctest": ctest, "python3": python3, "apt-get": apt_get, "scontrol": lambda: None,
             "./program": lambda: None,  # the reader's own
             "doxygen": lambda: (ROOT / WORDS[0]).exists() or refuse(f"there is no {WORDS[0]}"),
             "quickstart.sh": lambda: WORDS in ([], ["test"]) or refuse(f"it does not know {WORDS}")}
    real = [folder / NAME for folder in FOLDERS if (folder / NAME).is_file()]
    if NAME in LAUNCHERS:
        launch()
    elif NAME in tools:
        tools[NAME]()
    elif real:
        program(real[0])
    else:
        source()


main()
