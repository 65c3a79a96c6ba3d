# FIRKIN_PYTHON: the Python with the wheels of tools/requirements.txt; the one that the environment names, or .venv's, or python3. A build
# folder remembers it, so that a later build without the environment variable stays what it was.
set(firkin_python ${PROJECT_SOURCE_DIR}/.venv/bin/python)
if(NOT EXISTS ${firkin_python})
  set(firkin_python python3)
endif()
set(FIRKIN_PYTHON ${firkin_python} CACHE FILEPATH "Python with the wheels of tools/requirements.txt")
if(SKBUILD)  # a build of the Python package alone: the Python that it is built for has what tools/requirements.txt would bring
  set(FIRKIN_PYTHON ${Python_EXECUTABLE} CACHE FILEPATH "Python with the wheels of tools/requirements.txt" FORCE)
elseif(NOT "$ENV{FIRKIN_PYTHON}" STREQUAL "")
  set(FIRKIN_PYTHON $ENV{FIRKIN_PYTHON} CACHE FILEPATH "Python with the wheels of tools/requirements.txt" FORCE)
endif()
