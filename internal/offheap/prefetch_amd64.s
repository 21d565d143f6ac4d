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
// Four at a time, then what is left.
TEXT ·PrefetchIndexed(SB), NOSPLIT, $0-40
	MOVQ base+0(FP), BX
	MOVQ size+8(FP), DX
	MOVQ index_base+16(FP), SI
	MOVQ index_len+24(FP), CX
	LEAQ (SI)(CX*4), DI
	LEAQ -16(DI), R12
	CMPQ CX, $4
	JB   tail
	CMPQ DX, $8
	JE   loop8
loop:
	MOVL (SI), R8
	MOVL 4(SI), R9
	MOVL 8(SI), R10
	MOVL 12(SI), R11
	IMULQ DX, R8
	IMULQ DX, R9
	IMULQ DX, R10
	IMULQ DX, R11
	PREFETCHT0 (BX)(R8*1)
	PREFETCHT0 (BX)(R9*1)
	PREFETCHT0 (BX)(R10*1)
	PREFETCHT0 (BX)(R11*1)
	ADDQ $16, SI
	CMPQ SI, R12
	JBE  loop
	JMP  tail
loop8:
	MOVL (SI), R8
	MOVL 4(SI), R9
	MOVL 8(SI), R10
	MOVL 12(SI), R11
	PREFETCHT0 (BX)(R8*8)
	PREFETCHT0 (BX)(R9*8)
	PREFETCHT0 (BX)(R10*8)
	PREFETCHT0 (BX)(R11*8)
	ADDQ $16, SI
	CMPQ SI, R12
	JBE  loop8
tail:
	CMPQ SI, DI
	JAE  done
one:
	MOVL (SI), AX
	IMULQ DX, AX
	PREFETCHT0 (BX)(AX*1)
	ADDQ $4, SI
	CMPQ SI, DI
	JB   one
done:
	RET
