# ccache for every compile, nvcc's too (cmake/cuda.cmake); the sloppiness lets precompiled headers hit.
find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM)
  set(SLUICE_LAUNCHER
      ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime
      CCACHE_BASEDIR=${CMAKE_SOURCE_DIR} CCACHE_NOHASHDIR=1 ${CCACHE_PROGRAM})
  set(CMAKE_C_COMPILER_LAUNCHER ${SLUICE_LAUNCHER})
  set(CMAKE_CXX_COMPILER_LAUNCHER ${SLUICE_LAUNCHER})
endif()
