# The command attn: the public header and the shared library, and jansson for JSON.
find_package(PkgConfig REQUIRED)
pkg_check_modules(jansson REQUIRED IMPORTED_TARGET jansson)

file(GLOB attn_cli_sources CONFIGURE_DEPENDS RELATIVE ${PROJECT_SOURCE_DIR} cli/*.c)
add_executable(attn_cli ${attn_cli_sources})
set_target_properties(attn_cli PROPERTIES
    OUTPUT_NAME attn BUILD_RPATH_USE_ORIGIN ON INSTALL_RPATH "$ORIGIN/../${CMAKE_INSTALL_LIBDIR}")
target_link_libraries(attn_cli PRIVATE attn::attn PkgConfig::jansson m attn_flags)
