# What is installed: header, both libraries, command, manual page, attn.pc and the CMake package. Nothing installed names the place where
# it was built or put: a prefix can be moved, and DESTDIR works.
include(CMakePackageConfigHelpers)

install(FILES include/attn/attn.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/attn)
# Two sets of targets: a user of the shared library needs no development files of pthreadpool.
set(attn_package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/attn)
foreach(kind IN ITEMS shared static)
    install(TARGETS attn_${kind} EXPORT attn-${kind})
    install(EXPORT attn-${kind} FILE attn-${kind}.cmake NAMESPACE attn:: DESTINATION ${attn_package_dir})
endforeach()

if(TARGET attn_cuda) # found beside the shared library
    install(TARGETS attn_cuda LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
endif()

set(attn_needs_pthreadpool 0)
set(attn_pc_private "-lm -pthread -ldl")
if(WIN32)
    set(attn_pc_private "")
endif()
if(attn_workers STREQUAL "pthreadpool")
    set(attn_needs_pthreadpool 1)
    string(PREPEND attn_pc_private "-lpthreadpool ")
endif()
configure_package_config_file(cmake/attn-config.cmake.in attn-config.cmake INSTALL_DESTINATION ${attn_package_dir})
write_basic_package_version_file(attn-config-version.cmake COMPATIBILITY SameMajorVersion)
install(FILES ${PROJECT_BINARY_DIR}/attn-config.cmake ${PROJECT_BINARY_DIR}/attn-config-version.cmake cmake/Findpthreadpool.cmake
    DESTINATION ${attn_package_dir})

file(RELATIVE_PATH attn_pc_prefix /prefix/${CMAKE_INSTALL_LIBDIR}/pkgconfig /prefix)
string(REGEX REPLACE "/$" "" attn_pc_prefix "${attn_pc_prefix}")
configure_file(cmake/attn.pc.in attn.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/attn.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

if(ATTN_BUILD_CLI)
    install(TARGETS attn_cli)
    install(FILES docs/attn.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
endif()
