"""Pictures of environments as videos."""

from runner.videos.camera import Camera, fps_of, frame_of, render_mode
from runner.videos.video_file import SUFFIXES, VideoFile, check_installed

__all__ = ["SUFFIXES", "Camera", "VideoFile", "check_installed", "fps_of", "frame_of", "render_mode"]
