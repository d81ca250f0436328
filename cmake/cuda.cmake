# CUDA sources. Only they need nvcc: without it everything else is built, and ctest says so.
#
# An object holds PTX for every architecture of the tests' devices and of a release; -no-compress keeps it readable
# for the fake of tests/cuda_fake, -lineinfo gives its reports the source's lines. -fmad=false: a fused multiply-add
# is used only where the source has one (kernels/ARITHMETIC.md).
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

set(SLUICE_NVCC_FLAGS -std=c++20 -O3 -fmad=false -lineinfo -no-compress
    --expt-relaxed-constexpr -Werror all-warnings
    -Xcompiler=-Wall,-Wextra,-Werror,-O2,-fPIC)

# sluice_cuda_objects(OUT FILES SRCS a.cu ... [PTX capabilities]): compiles them, and sets OUT to the objects.
function(sluice_cuda_objects out)
  cmake_parse_arguments(arg "" "" "SRCS;PTX" ${ARGN})
  if(NOT arg_PTX)
    set(arg_PTX ${SLUICE_CUDA_PTX})
  endif()
  set(targets)
  foreach(capability ${arg_PTX})
    list(APPEND targets -gencode arch=compute_${capability},code=compute_${capability})
  endforeach()
  set(objects)
  foreach(source ${arg_SRCS})
    cmake_path(ABSOLUTE_PATH source)
    cmake_path(RELATIVE_PATH source BASE_DIRECTORY ${CMAKE_BINARY_DIR} OUTPUT_VARIABLE name)
    string(REGEX REPLACE "[^A-Za-z0-9]+" "_" name "${name}")
    set(object ${CMAKE_CURRENT_BINARY_DIR}/${name}.o)
    add_custom_command(
      OUTPUT ${object}
      COMMAND ${SLUICE_NVCC} ${SLUICE_NVCC_FLAGS} ${targets} -I${CMAKE_SOURCE_DIR} -MD -MF ${object}.d -c ${source} -o ${object}
      DEPENDS ${source}
      DEPFILE ${object}.d
      COMMENT "nvcc ${source}"
      VERBATIM)
    list(APPEND objects ${object})
  endforeach()
  set_source_files_properties(${objects} PROPERTIES EXTERNAL_OBJECT TRUE GENERATED TRUE)
  set(${out} ${objects} PARENT_SCOPE)
endfunction()

# Interface between daemons and the module (kernels/cuda/module): both must be compiled from the same headers.
set(SLUICE_CUDA_INTERFACE_HEADERS
    common/cuda/cuda_module.h common/encoding.h common/ring/memory_handle.h common/ring/unique_fd.h common/transfer/copier.h
    common/transfer/slab.h common/transfer/transfer_plan.h kernels/backend.h kernels/buffer.h kernels/kv_layout.h
    kernels/ops.h kernels/sparse_switch.h)
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
  set(entry ${CMAKE_SOURCE_DIR}/kernels/cuda/module/module.cc)
  add_library(${name} SHARED ${entry} ${arg_SRCS})
  target_compile_definitions(${name} PRIVATE SLUICE_CUDA_INTERFACE="${SLUICE_CUDA_INTERFACE}")
  target_link_libraries(${name} PRIVATE sluice_options sluice_absl kernels_cuda kernels_cuda_copy
                        ${arg_DEPS} Threads::Threads)
  target_link_options(${name} PRIVATE -Wl,--no-undefined -Wl,-Bsymbolic
                      -Wl,--version-script=${CMAKE_SOURCE_DIR}/kernels/cuda/module/symbols.map)
  set_target_properties(${name} PROPERTIES LINK_DEPENDS ${CMAKE_SOURCE_DIR}/kernels/cuda/module/symbols.map)
endfunction()
