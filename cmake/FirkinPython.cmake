# FIRKIN_PYTHON: the Python with torch and the group program of pyproject.toml. It is the one that the environment names, or that
# of .venv, or python3. A build folder remembers it for later builds without the environment variable.
set(firkin_python ${PROJECT_SOURCE_DIR}/.venv/bin/python)
if(NOT EXISTS ${firkin_python})
  set(firkin_python python3)
endif()
set(FIRKIN_PYTHON ${firkin_python} CACHE FILEPATH "Python with torch and the group program of pyproject.toml")
if(SKBUILD)  # a build of the Python package alone, with the Python that it is for, which has those wheels
  set(FIRKIN_PYTHON ${Python_EXECUTABLE} CACHE FILEPATH "Python with torch and the group program of pyproject.toml" FORCE)
elseif(NOT "$ENV{FIRKIN_PYTHON}" STREQUAL "")
  set(FIRKIN_PYTHON $ENV{FIRKIN_PYTHON} CACHE FILEPATH "Python with torch and the group program of pyproject.toml" FORCE)
endif()
