# Everything comes from the system; nothing is fetched. `./dev` installs what is missing.
find_package(OpenMP REQUIRED COMPONENTS CXX)
find_package(fmt 9 REQUIRED)
find_package(xsimd 8.1 REQUIRED)
find_package(nlohmann_json 3.11 REQUIRED)
find_package(PkgConfig REQUIRED)
pkg_check_modules(SLEEF REQUIRED IMPORTED_TARGET sleef)
# For .pth files in the zip form; without it these are refused.
pkg_check_modules(LIBZIP IMPORTED_TARGET libzip)
