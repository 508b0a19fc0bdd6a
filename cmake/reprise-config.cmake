# find_package(reprise): the target reprise::kv. It needs Abseil (status, statusor, strings) and OpenSSL's libcrypto.
include(CMakeFindDependencyMacro)
find_dependency(absl)
find_dependency(zstd)
find_dependency(OpenSSL COMPONENTS Crypto)
find_dependency(Threads)
include(${CMAKE_CURRENT_LIST_DIR}/reprise-targets.cmake)
