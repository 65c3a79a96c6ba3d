"""Imported before torchvision, by the ranks of integrations_test.py: leaves out torchvision's own operators, which nothing there uses. The
wheel that pip offers may have them for another build of torch than the one that is there, and then cannot be imported."""

import sys
import types

sys.modules["torchvision._meta_registrations"] = types.ModuleType("torchvision._meta_registrations")
