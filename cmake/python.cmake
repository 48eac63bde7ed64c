# The Python package's share of what is built: the shared library as one file beside the modules (python/libattn), without links to it by
# version, which a wheel cannot hold.
set_target_properties(attn_shared PROPERTIES VERSION "" SOVERSION "" NO_SONAME ON)
install(TARGETS attn_shared
    LIBRARY DESTINATION libattn COMPONENT python
    RUNTIME DESTINATION libattn COMPONENT python # Windows
    ARCHIVE DESTINATION libattn COMPONENT unused)
