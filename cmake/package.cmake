# Installed files and their Debian packages: deploy/package.sh builds and packs. `sluice` has everything except the
# module of device cuda, which is in `sluice-cuda` if it is built.
set(CMAKE_SKIP_INSTALL_ALL_DEPENDENCY TRUE)  # tests and benchmarks need not be built for a package
set(CMAKE_INSTALL_DEFAULT_COMPONENT_NAME sluice)

set(SLUICE_MANUALS ${CMAKE_BINARY_DIR}/manuals)
add_custom_target(manuals
  COMMAND ${CMAKE_COMMAND} -E rm -rf ${SLUICE_MANUALS}
  COMMAND ${SLUICE_PYTHON} ${CMAKE_SOURCE_DIR}/deploy/lib/make_manuals.py ${SLUICE_MANUALS} ${CMAKE_BINARY_DIR}/bin
  COMMAND gzip -9n -r ${SLUICE_MANUALS}/man
  DEPENDS sluice weightd inferd COMMENT "man pages and completions" VERBATIM)
add_custom_target(package_files DEPENDS sluice weightd inferd manuals)
set(CPACK_COMPONENTS_ALL sluice)
if(TARGET sluice_cuda)
  add_dependencies(package_files sluice_cuda_release)
  list(APPEND CPACK_COMPONENTS_ALL cuda)
  # Module path of weightd and inferd in /usr/bin (common/protocol/cuda_module.cc). deploy/package.sh builds the module of a
  # release first, which takes a quarter of an hour; cpack without it packs the build's own and says so.
  install(CODE "
    set(module \"${CMAKE_BINARY_DIR}/module/libsluice_cuda.so\")
    if(NOT EXISTS \"\${module}\")
      message(WARNING \"sluice-cuda gets this build's own architectures: deploy/package.sh builds all of a release\")
      set(module \"${CMAKE_BINARY_DIR}/bin/libsluice_cuda.so\")
    endif()
    file(INSTALL \"\${module}\" DESTINATION /usr/lib/sluice TYPE SHARED_LIBRARY)" COMPONENT cuda)
  install(FILES ${CMAKE_SOURCE_DIR}/deploy/package/copyright ${CMAKE_SOURCE_DIR}/THIRD_PARTY_NOTICES.md
          DESTINATION /usr/share/doc/sluice-cuda COMPONENT cuda)
endif()

install(TARGETS sluice weightd inferd RUNTIME DESTINATION /usr/bin)
file(GLOB SLUICE_UNITS ${CMAKE_SOURCE_DIR}/deploy/systemd/*.service ${CMAKE_SOURCE_DIR}/deploy/systemd/*.socket)
install(FILES ${SLUICE_UNITS} DESTINATION /usr/lib/systemd/system)
install(FILES ${CMAKE_SOURCE_DIR}/deploy/systemd/sluice.sysusers DESTINATION /usr/lib/sysusers.d RENAME sluice.conf)
install(FILES ${CMAKE_SOURCE_DIR}/deploy/systemd/sluice.tmpfiles DESTINATION /usr/lib/tmpfiles.d RENAME sluice.conf)
install(FILES ${CMAKE_SOURCE_DIR}/deploy/config/weightd.toml ${CMAKE_SOURCE_DIR}/deploy/config/inferd.toml
        DESTINATION /etc/sluice)
install(DIRECTORY ${SLUICE_MANUALS}/man/ DESTINATION /usr/share/man/man1 FILES_MATCHING PATTERN *.1.gz)
install(DIRECTORY ${SLUICE_MANUALS}/man/ DESTINATION /usr/share/man/man8 FILES_MATCHING PATTERN *.8.gz)
install(FILES ${SLUICE_MANUALS}/sluice.bash DESTINATION /usr/share/bash-completion/completions RENAME sluice)
install(FILES ${SLUICE_MANUALS}/_sluice DESTINATION /usr/share/zsh/vendor-completions)
install(FILES ${CMAKE_SOURCE_DIR}/README.md ${CMAKE_SOURCE_DIR}/LICENSE ${CMAKE_SOURCE_DIR}/THIRD_PARTY_NOTICES.md
        ${CMAKE_SOURCE_DIR}/CHANGELOG.md ${CMAKE_SOURCE_DIR}/CONTRIBUTING.md ${CMAKE_SOURCE_DIR}/SECURITY.md
        ${CMAKE_SOURCE_DIR}/deploy/package/copyright
        DESTINATION /usr/share/doc/sluice)
# The documents in the tree's own layout, so that the links between them hold.
install(DIRECTORY ${CMAKE_SOURCE_DIR}/docs/ DESTINATION /usr/share/doc/sluice/docs)
install(DIRECTORY ${CMAKE_SOURCE_DIR}/lab/docs/ DESTINATION /usr/share/doc/sluice/lab/docs)
install(FILES ${CMAKE_SOURCE_DIR}/pack/FORMAT.md DESTINATION /usr/share/doc/sluice/pack)
install(FILES ${SLUICE_XGRAMMAR_DIR}/LICENSE ${SLUICE_XGRAMMAR_DIR}/NOTICE DESTINATION /usr/share/doc/sluice/xgrammar)
install(DIRECTORY ${CMAKE_SOURCE_DIR}/proto/sluice DESTINATION /usr/share/sluice/proto FILES_MATCHING PATTERN *.proto)

set(CPACK_GENERATOR DEB)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_COMPONENTS_GROUPING IGNORE)
set(CPACK_PACKAGE_NAME sluice)
set(CPACK_PACKAGE_CONTACT "Sluice <root@localhost>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "Mixture-of-Experts models larger than memory")
set(CPACK_COMPONENT_SLUICE_DESCRIPTION "Serves Mixture-of-Experts language models whose experts lie on SSD.
weightd keeps them in a bounded part of memory, inferd computes and answers over
gRPC and HTTP, sluice is the command for people.")
set(CPACK_COMPONENT_CUDA_DESCRIPTION "The module by which weightd and inferd use an NVIDIA GPU (--device cuda).
It is of the same build as the programs of the package sluice.")
set(CPACK_PACKAGE_DIRECTORY ${CMAKE_BINARY_DIR}/package)
set(CPACK_SET_DESTDIR ON)
set(CPACK_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_SLUICE_PACKAGE_NAME sluice)
set(CPACK_DEBIAN_SLUICE_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_SLUICE_PACKAGE_DEPENDS passwd)
set(CPACK_DEBIAN_SLUICE_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(CPACK_DEBIAN_SLUICE_PACKAGE_CONTROL_EXTRA ${CMAKE_SOURCE_DIR}/deploy/package/conffiles
    ${CMAKE_SOURCE_DIR}/deploy/package/postinst ${CMAKE_SOURCE_DIR}/deploy/package/prerm
    ${CMAKE_SOURCE_DIR}/deploy/package/postrm)
set(CPACK_DEBIAN_CUDA_PACKAGE_NAME sluice-cuda)
# The driver's library comes with NVIDIA's own installer as often as from a package, so no package is required.
set(CPACK_DEBIAN_CUDA_PACKAGE_SHLIBDEPS OFF)
set(CPACK_DEBIAN_CUDA_PACKAGE_DEPENDS "sluice (= ${PROJECT_VERSION}), libc6, libstdc++6, libgcc-s1")
set(CPACK_DEBIAN_CUDA_PACKAGE_SUGGESTS nvidia-driver)
include(CPack)
