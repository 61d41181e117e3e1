"""Horovod's API over LightCC: `taco_train.lightcc.horovod.torch` is `horovod.torch`."""
