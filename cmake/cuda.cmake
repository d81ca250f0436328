# CUDA sources. Only they need nvcc: without it everything else is built, and ctest says so.
#
# One kind of objects: SASS, so that no driver compiles at the first load, and PTX beside it, for GPUs that come later and
# for the fake of tests/cuda_fake, which reads it: -no-compress keeps it readable, -lineinfo adds the source's lines.
# -fmad=false: a fused multiply-add is used only where the source has one (kernels/ARITHMETIC.md). A kernel that spills
# registers is an error; what ptxas says of each kernel is beside its object, in .ptxas (bench/cuda/cuda_registers.py).
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
set(SLUICE_CUDA_PTX 75 80 CACHE STRING "Compute capabilities whose PTX goes into CUDA objects")

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
set(SLUICE_CUDA_SASS_IS_GUESSED OFF)
if(SLUICE_CUDA AND (NOT SLUICE_CUDA_SASS OR SLUICE_CUDA_SASS STREQUAL native))
  sluice_cuda_native(SLUICE_CUDA_SASS)
  if(NOT SLUICE_CUDA_SASS AND SLUICE_CUDA_ARCHITECTURES STREQUAL native)
    message(FATAL_ERROR "SLUICE_CUDA_ARCHITECTURES=native: nvidia-smi lists no GPU")
  elseif(NOT SLUICE_CUDA_SASS)
    set(SLUICE_CUDA_SASS 80 90)
    set(SLUICE_CUDA_SASS_IS_GUESSED ON)
  endif()
endif()

set(SLUICE_NVCC_FLAGS -std=c++20 -O3 -fmad=false
    --expt-relaxed-constexpr -Werror all-warnings -Xptxas=-v,-warn-spills
    -Xcompiler=-Wall,-Wextra,-Werror,-O2,-fPIC)

# sluice_cuda_objects(OUT SRCS a.cu ... [PTX capabilities] [SASS capabilities] [RELEASE]): compiles them with PTX
# [SLUICE_CUDA_PTX] and SASS [none], and sets OUT to the objects. RELEASE: for the module of a package, with the SASS of
# all its architectures, the PTX of the newest, and compressed.
function(sluice_cuda_objects out)
  cmake_parse_arguments(arg "RELEASE" "" "SRCS;PTX;SASS" ${ARGN})
  set(flags -lineinfo -no-compress)
  set(kind)
  if(arg_RELEASE)
    set(arg_SASS ${SLUICE_CUDA_RELEASE})
    list(GET arg_SASS -1 arg_PTX)
    set(flags --compress-mode=size)
    set(kind .release)
  elseif(NOT arg_PTX)
    set(arg_PTX ${SLUICE_CUDA_PTX})
  endif()
  set(fronts ${arg_PTX})
  if(arg_RELEASE OR NOT SLUICE_CUDA_SASS_IS_GUESSED)
    list(APPEND fronts ${arg_SASS})
  endif()
  list(REMOVE_DUPLICATES fronts)
  list(SORT fronts COMPARE NATURAL)
  foreach(front ${fronts})
    set(code_${front})
  endforeach()
  foreach(capability ${arg_PTX})
    list(APPEND code_${capability} compute_${capability})
  endforeach()
  foreach(capability ${arg_SASS})
    # Each run of the front end takes as long as two of ptxas: guessed architectures share the newest that suits them.
    foreach(front ${fronts})
      if(NOT front GREATER capability)
        set(suits ${front})
      endif()
    endforeach()
    list(APPEND code_${suits} sm_${capability})
  endforeach()
  set(targets)
  foreach(front ${fronts})
    list(JOIN code_${front} , code)
    list(APPEND targets -gencode arch=compute_${front},code=[${code}])
  endforeach()
  set(objects)
  foreach(source ${arg_SRCS})
    cmake_path(ABSOLUTE_PATH source)
    cmake_path(RELATIVE_PATH source BASE_DIRECTORY ${CMAKE_BINARY_DIR} OUTPUT_VARIABLE name)
    string(REGEX REPLACE "[^A-Za-z0-9]+" "_" name "${name}")
    set(object ${CMAKE_CURRENT_BINARY_DIR}/${name}${kind}.o)
    add_custom_command(
      OUTPUT ${object}
      COMMAND ${CMAKE_SOURCE_DIR}/cmake/run_nvcc.sh ${object}.ptxas ${SLUICE_LAUNCHER} ${SLUICE_NVCC} ${SLUICE_NVCC_FLAGS}
              ${flags} ${targets} -I${CMAKE_SOURCE_DIR} -MD -MF ${object}.d -c ${source} -o ${object}
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
