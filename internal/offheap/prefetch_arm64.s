#include "textflag.h"

// func Prefetch(addresses []uintptr)
TEXT ·Prefetch(SB), NOSPLIT, $0-24
	MOVD addresses_base+0(FP), R0
	MOVD addresses_len+8(FP), R1
	CBZ  R1, done
loop:
	MOVD.P 8(R0), R2
	PRFM (R2), PLDL1KEEP
	SUBS $1, R1, R1
	BNE  loop
done:
	RET

// func PrefetchIndexed(base unsafe.Pointer, size uintptr, index []uint32)
TEXT ·PrefetchIndexed(SB), NOSPLIT, $0-40
	MOVD base+0(FP), R3
	MOVD size+8(FP), R4
	MOVD index_base+16(FP), R0
	MOVD index_len+24(FP), R1
	CBZ  R1, done
loop:
	MOVWU.P 4(R0), R2
	MADD R4, R3, R2, R2
	PRFM (R2), PLDL1KEEP
	SUBS $1, R1, R1
	BNE  loop
done:
	RET
