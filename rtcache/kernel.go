package rtcache

type kernel struct{}
