# FIRKIN_PYTHON: the Python with the wheels of tools/requirements.txt; the one that the environment names, or .venv's. A build folder
# remembers it, so that a later build without the environment variable stays what it was.
set(FIRKIN_PYTHON ${CMAKE_SOURCE_DIR}/.venv/bin/python CACHE FILEPATH "Python with the wheels of tools/requirements.txt")
if(SKBUILD)  # a build of the Python package alone: the Python that it is built for has what tools/requirements.txt would bring
  set(FIRKIN_PYTHON ${Python_EXECUTABLE} CACHE FILEPATH "Python with the wheels of tools/requirements.txt" FORCE)
elseif(NOT "$ENV{FIRKIN_PYTHON}" STREQUAL "")
  set(FIRKIN_PYTHON $ENV{FIRKIN_PYTHON} CACHE FILEPATH "Python with the wheels of tools/requirements.txt" FORCE)
endif()
