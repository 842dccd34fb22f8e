"""The engines that Shoal comes with, one in each module."""
