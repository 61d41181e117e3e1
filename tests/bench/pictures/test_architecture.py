import xml.etree.ElementTree as ElementTree

from bench.pictures.architecture import BOXES, PICTURE, picture


def test_the_committed_picture_is_what_the_script_draws() -> None:
    """Else: python -m bench.pictures.architecture."""
    assert PICTURE.read_text() == picture()
    assert ElementTree.fromstring(picture()).tag == "{http://www.w3.org/2000/svg}svg"


def test_boxes_do_not_overlap() -> None:
    for number, box in enumerate(BOXES):
        for other in BOXES[number + 1 :]:
            beside = box.x + box.width <= other.x or other.x + other.width <= box.x
            above = box.y + box.height <= other.y or other.y + other.height <= box.y
            assert beside or above, (box.title, other.title)
