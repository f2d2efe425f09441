"""Fixtures that tests of several folders share; this folder is on the import path of all tests."""

pytest_plugins = ["etcd_cluster"]
