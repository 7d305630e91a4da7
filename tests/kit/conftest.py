"""Fixtures of these tests."""

from tests.kit.recording import define as define
