#[[ FindLibTorch: libtorch as plain imported targets.

TorchConfig.cmake is not used: that of a CUDA build stops where there is no CUDA toolkit, enables the CUDA language,
changes its flags globally and leaves foreign run paths. A C++ user needs headers and libraries only.

  LibTorch::LibTorch  headers, torch_cpu and c10
  LibTorch::c10_cuda  streams and the caching allocator, in CUDA builds. libtorch_cuda.so (kernels) has no target: it is
                      loaded at run time, since it does not load where cuDNN, NVSHMEM, … are absent.

Looked for in LibTorch_ROOT (variable or environment; a libtorch folder or <site-packages>/torch), Torch_DIR,
CMAKE_PREFIX_PATH, autopar's own environment, Python's torch, the system.
Sets LibTorch_FOUND, LibTorch_PREFIX, LibTorch_VERSION, LibTorch_WITH_CUDA.
]]
set(libtorch_hints ${LibTorch_ROOT} $ENV{LibTorch_ROOT} $ENV{LIBTORCH})
foreach(dir IN ITEMS "${Torch_DIR}" "$ENV{Torch_DIR}") # <prefix>/share/cmake/Torch
  if(dir)
    list(APPEND libtorch_hints "${dir}/../../..")
  endif()
endforeach()
string(REPLACE ":" ";" libtorch_env_prefixes "$ENV{CMAKE_PREFIX_PATH}")
foreach(prefix IN LISTS CMAKE_PREFIX_PATH libtorch_env_prefixes) # torch.utils.cmake_prefix_path is <prefix>/share/cmake
  list(APPEND libtorch_hints "${prefix}" "${prefix}/../..")
endforeach()
file(GLOB libtorch_own_environment "$ENV{HOME}/.cache/autopar/venv/lib/python3*/site-packages/torch")
list(APPEND libtorch_hints ${libtorch_own_environment})
find_path(LibTorch_INCLUDE_DIR ATen/ATen.h HINTS ${libtorch_hints} PATH_SUFFIXES include NO_DEFAULT_PATH)
if(NOT LibTorch_INCLUDE_DIR)
  find_package(Python3 QUIET COMPONENTS Interpreter)
  if(Python3_FOUND)
    execute_process(
      COMMAND "${Python3_EXECUTABLE}" -c
        "import importlib.util as u, os; s = u.find_spec('torch'); print(os.path.dirname(s.origin) if s else '')"
      OUTPUT_VARIABLE libtorch_of_python OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
    if(libtorch_of_python)
      find_path(LibTorch_INCLUDE_DIR ATen/ATen.h HINTS "${libtorch_of_python}/include" NO_DEFAULT_PATH)
    endif()
  endif()
endif()
find_path(LibTorch_INCLUDE_DIR ATen/ATen.h)
mark_as_advanced(LibTorch_INCLUDE_DIR)
if(LibTorch_INCLUDE_DIR)
  get_filename_component(LibTorch_PREFIX "${LibTorch_INCLUDE_DIR}" DIRECTORY)
  foreach(library IN ITEMS c10 torch_cpu c10_cuda torch_cuda)
    find_library(LibTorch_${library}_LIBRARY ${library} HINTS "${LibTorch_PREFIX}/lib" NO_DEFAULT_PATH)
    mark_as_advanced(LibTorch_${library}_LIBRARY)
  endforeach()
  foreach(header IN ITEMS torch/headeronly/version.h torch/version.h torch/csrc/api/include/torch/version.h)
    if(NOT LibTorch_VERSION AND EXISTS "${LibTorch_INCLUDE_DIR}/${header}")
      file(STRINGS "${LibTorch_INCLUDE_DIR}/${header}" libtorch_version_lines
        REGEX "^#define TORCH_VERSION_(MAJOR|MINOR|PATCH) +[0-9]+")
      list(TRANSFORM libtorch_version_lines REPLACE "[^0-9]" "")
      list(JOIN libtorch_version_lines "." LibTorch_VERSION)
    endif()
  endforeach()
endif()
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(LibTorch
  REQUIRED_VARS LibTorch_torch_cpu_LIBRARY LibTorch_c10_LIBRARY LibTorch_INCLUDE_DIR
  VERSION_VAR LibTorch_VERSION
  REASON_FAILURE_MESSAGE "set LibTorch_ROOT to a libtorch folder or to <site-packages>/torch (`bash cmake/quickstart.sh` fetches one)")

if(LibTorch_FOUND AND NOT TARGET LibTorch::LibTorch)
  set(LibTorch_WITH_CUDA FALSE)
  if(LibTorch_torch_cuda_LIBRARY AND LibTorch_c10_cuda_LIBRARY)
    set(LibTorch_WITH_CUDA TRUE)
  endif()
  add_library(LibTorch::c10 SHARED IMPORTED)
  set_target_properties(LibTorch::c10 PROPERTIES
    IMPORTED_LOCATION "${LibTorch_c10_LIBRARY}"
    INTERFACE_INCLUDE_DIRECTORIES "${LibTorch_INCLUDE_DIR};${LibTorch_INCLUDE_DIR}/torch/csrc/api/include")
  add_library(LibTorch::torch_cpu SHARED IMPORTED)
  set_target_properties(LibTorch::torch_cpu PROPERTIES
    IMPORTED_LOCATION "${LibTorch_torch_cpu_LIBRARY}" INTERFACE_LINK_LIBRARIES LibTorch::c10)
  add_library(LibTorch::LibTorch INTERFACE IMPORTED)
  target_link_libraries(LibTorch::LibTorch INTERFACE LibTorch::torch_cpu LibTorch::c10)
  if(LibTorch_WITH_CUDA)
    add_library(LibTorch::c10_cuda SHARED IMPORTED)
    set_target_properties(LibTorch::c10_cuda PROPERTIES
      IMPORTED_LOCATION "${LibTorch_c10_cuda_LIBRARY}" INTERFACE_LINK_LIBRARIES LibTorch::c10)
  endif()
  # torch_cpu of a CUDA wheel needs cudart and cupti. The linker follows them to check for undefined symbols.
  file(GLOB libtorch_nvidia_dirs "${LibTorch_PREFIX}/../nvidia/*/lib")
  foreach(dir IN LISTS libtorch_nvidia_dirs)
    get_filename_component(dir "${dir}" ABSOLUTE)
    target_link_options(LibTorch::LibTorch INTERFACE "LINKER:-rpath-link,${dir}")
  endforeach()
  message(STATUS "autopar: libtorch ${LibTorch_VERSION} at ${LibTorch_PREFIX}, CUDA build: ${LibTorch_WITH_CUDA}")
endif()
