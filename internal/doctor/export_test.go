package doctor

// Kind is for tests of devices that not every kernel can make.
var Kind = kind
