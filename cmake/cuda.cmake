# CUDA sources. Only they need nvcc: without it everything else is built, and ctest says so.
#
# Two kinds of objects: readable ones hold PTX of several architectures, which -no-compress leaves readable for the fake
# of tests/cuda_fake and to which -lineinfo adds the source's lines; real ones hold SASS, so that no driver compiles at the first
# load, and PTX of the newest architecture for GPUs that come later. -fmad=false: a fused multiply-add is used only where
# the source has one (kernels/ARITHMETIC.md).
find_program(SLUICE_NVCC nvcc PATHS /usr/local/cuda/bin)
cmake_path(GET SLUICE_NVCC PARENT_PATH SLUICE_NVCC_FOLDER)
find_path(SLUICE_CUDA_INCLUDE cuda_runtime_api.h PATHS ${SLUICE_NVCC_FOLDER}/../include /usr/local/cuda/include)
set(SLUICE_CUDA OFF)
if(SLUICE_NVCC AND SLUICE_CUDA_INCLUDE)
  set(SLUICE_CUDA ON)
else()
  message(STATUS "cuda: not built (no nvcc)")
endif()
set(SLUICE_CUDA_RELEASE 75 80 86 89 90 100 120)  # compute capabilities that a release supports
set(SLUICE_CUDA_PTX 75 80 100 CACHE STRING "Compute capabilities whose PTX goes into CUDA objects")

set(SLUICE_CUDA_ARCHITECTURES "" CACHE STRING
    "Compute capabilities whose SASS the module has; empty: this machine's GPUs, or 80 and 90 where there is none")

# Compute capabilities of this machine's GPUs, as 90 for 9.0; empty where no driver lists one.
function(sluice_cuda_native out)
  set(capabilities)
  find_program(SLUICE_NVIDIA_SMI nvidia-smi)
  if(SLUICE_NVIDIA_SMI)
    execute_process(COMMAND ${SLUICE_NVIDIA_SMI} --query-gpu=compute_cap --format=csv,noheader
                    OUTPUT_VARIABLE lines ERROR_QUIET TIMEOUT 60)
    string(REGEX MATCHALL "[0-9]+\\.[0-9]" capabilities "${lines}")
    string(REPLACE "." "" capabilities "${capabilities}")
    list(REMOVE_DUPLICATES capabilities)
    list(SORT capabilities COMPARE NATURAL)
  endif()
  set(${out} ${capabilities} PARENT_SCOPE)
endfunction()

set(SLUICE_CUDA_SASS ${SLUICE_CUDA_ARCHITECTURES})
if(SLUICE_CUDA AND (NOT SLUICE_CUDA_SASS OR SLUICE_CUDA_SASS STREQUAL native))
  sluice_cuda_native(SLUICE_CUDA_SASS)
  if(NOT SLUICE_CUDA_SASS AND SLUICE_CUDA_ARCHITECTURES STREQUAL native)
    message(FATAL_ERROR "SLUICE_CUDA_ARCHITECTURES=native: nvidia-smi lists no GPU")
  elseif(NOT SLUICE_CUDA_SASS)
    set(SLUICE_CUDA_SASS 80 90)
  endif()
endif()

set(SLUICE_NVCC_FLAGS -std=c++20 -O3 -fmad=false
    --expt-relaxed-constexpr -Werror all-warnings
    -Xcompiler=-Wall,-Wextra,-Werror,-O2,-fPIC)

# sluice_cuda_objects(OUT FILES SRCS a.cu ... [PTX capabilities | SASS capabilities]): compiles them, and sets OUT to the
# objects: readable ones, or with SASS real ones, of which the last capability's PTX is there too.
function(sluice_cuda_objects out)
  cmake_parse_arguments(arg "" "" "SRCS;PTX;SASS" ${ARGN})
  set(flags -lineinfo -no-compress)
  set(kind)
  if(arg_SASS)
    list(GET arg_SASS -1 arg_PTX)
    list(JOIN arg_SASS _ kind)
    set(kind .sm_${kind})
    set(flags --compress-mode=size)
  elseif(NOT arg_PTX)
    set(arg_PTX ${SLUICE_CUDA_PTX})
  endif()
  set(targets)
  foreach(capability ${arg_SASS})
    list(APPEND targets -gencode arch=compute_${capability},code=sm_${capability})
  endforeach()
  foreach(capability ${arg_PTX})
    list(APPEND targets -gencode arch=compute_${capability},code=compute_${capability})
  endforeach()
  set(objects)
  foreach(source ${arg_SRCS})
    cmake_path(ABSOLUTE_PATH source)
    cmake_path(RELATIVE_PATH source BASE_DIRECTORY ${CMAKE_BINARY_DIR} OUTPUT_VARIABLE name)
    string(REGEX REPLACE "[^A-Za-z0-9]+" "_" name "${name}")
    set(object ${CMAKE_CURRENT_BINARY_DIR}/${name}${kind}.o)
    add_custom_command(
      OUTPUT ${object}
      COMMAND ${SLUICE_LAUNCHER} ${SLUICE_NVCC} ${SLUICE_NVCC_FLAGS} ${flags} ${targets} -I${CMAKE_SOURCE_DIR} -MD -MF ${object}.d -c ${source} -o ${object}
      DEPENDS ${source}
      DEPFILE ${object}.d
      COMMENT "nvcc ${source}"
      VERBATIM)
    list(APPEND objects ${object})
  endforeach()
  set_source_files_properties(${objects} PROPERTIES EXTERNAL_OBJECT TRUE GENERATED TRUE)
  set(${out} ${objects} PARENT_SCOPE)
endfunction()

# Interface between daemons and the module (kernels/cuda/module.cc): both must be compiled from the same headers.
set(SLUICE_CUDA_INTERFACE_HEADERS
    common/protocol/cuda_module.h common/base/encoding.h common/protocol/memory_handle.h common/base/unique_fd.h
    common/protocol/copier.h common/protocol/transfer_plan.h kernels/backend.h kernels/buffer.h kernels/ops.h)
set(SLUICE_CUDA_INTERFACE ${PROJECT_VERSION})
foreach(header ${SLUICE_CUDA_INTERFACE_HEADERS})
  file(SHA256 ${CMAKE_SOURCE_DIR}/${header} digest)
  string(SHA256 SLUICE_CUDA_INTERFACE "${SLUICE_CUDA_INTERFACE}${digest}")
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/${header})
endforeach()

# sluice_cuda_module(NAME SRCS ... DEPS ...): a module of the device cuda over these CUDA libraries; it exports one
# symbol.
function(sluice_cuda_module name)
  cmake_parse_arguments(arg "" "" "SRCS;DEPS" ${ARGN})
  set(entry ${CMAKE_SOURCE_DIR}/kernels/cuda/module.cc)
  add_library(${name} SHARED ${entry} ${arg_SRCS})
  target_compile_definitions(${name} PRIVATE SLUICE_CUDA_INTERFACE="${SLUICE_CUDA_INTERFACE}")
  target_link_libraries(${name} PRIVATE sluice_options sluice_absl kernels_cuda
                        ${arg_DEPS} Threads::Threads)
  target_link_options(${name} PRIVATE -Wl,--no-undefined -Wl,-Bsymbolic
                      -Wl,--version-script=${CMAKE_SOURCE_DIR}/kernels/cuda/symbols.map)
  set_target_properties(${name} PROPERTIES LINK_DEPENDS ${CMAKE_SOURCE_DIR}/kernels/cuda/symbols.map)
endfunction()
