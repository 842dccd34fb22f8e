"""Process a stream of images with deadlines in a farm that scales its workers."""

from time import perf_counter

from shoal import Farm, Resources, Session
from shoal.experiments.image_farm import make_image, process_image
from shoal.farm import Deadline, LeastLaxity, SquareRootStaffing
from shoal.farm.service_model import ServiceModel

SIZES = (512, 512, 1024, 512, 2048, 512, 1024, 512)


def measured(session: Session) -> ServiceModel:
    """Measure how long images take by size; `shoal farm calibrate` does so more carefully."""
    with Farm(process_image, workers=1, session=session) as farm:
        samples = []
        for size in (512, 1024):
            image, seconds = make_image(size), []
            for _ in range(3):  # the first one also imports packages
                began = perf_counter()
                farm.submit(image).result()
                seconds.append(perf_counter() - began)
            samples.append((float(size), min(seconds)))
    return ServiceModel.fitted(samples)


if __name__ == "__main__":
    images = {size: make_image(size) for size in set(SIZES)}
    size_of = {image: size for size, image in images.items()}
    with Session() as session:
        model = measured(session)
        with Farm(
            process_image,
            workers=(1, 4),
            resources=Resources(memory_mb=1024),
            deadline=Deadline(factor=20.0, least=1.0),
            order=LeastLaxity(),
            autoscaler=SquareRootStaffing(),
            every=1.0,
            expected=lambda image: model.seconds(size_of[image]),
            session=session,
        ) as farm:
            for made in farm.map(images[size] for size in SIZES):
                width, height = made["size"]
                print(f"{width} x {height}: thumbnail of {len(made['thumbnail'])} bytes, "
                      f"PNG of {made['png_nbytes']} bytes")  # fmt: skip
            print(f"{farm.model.completed_total} images, at most {farm.model.most_workers} workers")
