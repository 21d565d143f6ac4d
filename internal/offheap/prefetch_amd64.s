#include "textflag.h"

// func Prefetch(addresses []uintptr)
TEXT ·Prefetch(SB), NOSPLIT, $0-24
	MOVQ addresses_base+0(FP), SI
	MOVQ addresses_len+8(FP), CX
	LEAQ (SI)(CX*8), DI
	CMPQ SI, DI
	JAE  done
loop:
	MOVQ (SI), AX
	PREFETCHT0 (AX)
	ADDQ $8, SI
	CMPQ SI, DI
	JB   loop
done:
	RET

// func PrefetchIndexed(base unsafe.Pointer, size uintptr, index []uint32)
TEXT ·PrefetchIndexed(SB), NOSPLIT, $0-40
	MOVQ base+0(FP), BX
	MOVQ size+8(FP), DX
	MOVQ index_base+16(FP), SI
	MOVQ index_len+24(FP), CX
	LEAQ (SI)(CX*4), DI
	CMPQ SI, DI
	JAE  done
loop:
	MOVL (SI), AX
	IMULQ DX, AX
	PREFETCHT0 (BX)(AX*1)
	ADDQ $4, SI
	CMPQ SI, DI
	JB   loop
done:
	RET
