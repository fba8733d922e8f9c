package mesh

import (
	"regexp/syntax"
	"unicode"
	"unicode/utf8"
)

// MaxProgram is the largest program of a regular expression that an object of a source which is bound to
// namespaces may have. An Envoy takes up to 32,768 instructions, and refuses the whole route configuration
// over it.
const MaxProgram = 4096

// programOverhead is what each program has, as begin and match.
const programOverhead = 4

// Program is about how many instructions RE2 makes of an expression, rather too many than too few. Releases of
// Envoy differ: this is for those that read UTF-8, which make the most. The work is linear in the text: what is
// repeated is counted, not copied. It is 0 for what is no expression.
func Program(expression string) int {
	re, err := syntax.Parse(expression, syntax.Perl)
	if err != nil {
		return 0
	}
	return programOverhead + instructions(re)
}

// maxInstructions bounds the sums, which do not overflow so.
const maxInstructions = 1 << 40

func instructions(re *syntax.Regexp) int {
	n := 0
	for _, sub := range re.Sub {
		n += instructions(sub)
	}
	switch re.Op {
	case syntax.OpLiteral:
		for _, r := range re.Rune {
			n += literalBytes(r, re.Flags&syntax.FoldCase != 0)
		}
	case syntax.OpCharClass:
		n = classBytes(re.Rune)
	case syntax.OpAnyChar, syntax.OpAnyCharNotNL:
		n = anyBytes
	case syntax.OpCapture:
		n += 2
	case syntax.OpStar:
		n += 2
	case syntax.OpPlus, syntax.OpQuest:
		n++
	case syntax.OpAlternate:
		n += len(re.Sub) - 1
	case syntax.OpRepeat:
		n = repeated(n, re.Min, re.Max)
	case syntax.OpNoMatch, syntax.OpEmptyMatch, syntax.OpConcat:
	case syntax.OpBeginLine, syntax.OpEndLine, syntax.OpBeginText, syntax.OpEndText, syntax.OpWordBoundary, syntax.OpNoWordBoundary:
		n = 1
	}
	return min(n, maxInstructions)
}

// repeated is x{least,most}: copies, of which those after the first least may be left out; most is -1 for no limit.
func repeated(n, least, most int) int {
	if most < 0 {
		return max(1, least)*n + 2
	}
	return most*n + most - least
}

// anyBytes are the instructions of a dot: sequences of one to four bytes.
const anyBytes = 9

// literalBytes are those of a character, with its other cases.
func literalBytes(r rune, fold bool) int {
	if !fold {
		return utf8.RuneLen(r)
	}
	class := []rune{r, r}
	for f := unicode.SimpleFold(r); f != r; f = unicode.SimpleFold(f) {
		class = append(class, f, f)
	}
	return classBytes(class)
}

// sequence is a range of characters of one length: a range for each byte.
type sequence struct {
	lo, hi [utf8.UTFMax]byte
	bytes  int
}

func sequenceOf(lo, hi rune) (s sequence) {
	s.bytes = utf8.EncodeRune(s.lo[:], lo)
	utf8.EncodeRune(s.hi[:], hi)
	return s
}

// behind is how many instructions a sequence adds to the one before: equal beginnings are made once.
func (s *sequence) behind(prev *sequence) int {
	n := s.bytes
	for i := 0; i < s.bytes-1 && s.bytes == prev.bytes && s.lo[i] == prev.lo[i] && s.hi[i] == prev.hi[i]; i++ {
		n--
	}
	return n
}

// classBytes are the instructions of a class.
func classBytes(ranges []rune) int {
	n, prev := 0, sequence{}
	for i := 0; i+1 < len(ranges); i += 2 {
		lo, hi := ranges[i], ranges[i+1]
		if hi == utf8.MaxRune && lo <= utf8.RuneSelf { // as a dot
			n += anyBytes - 1
			hi = utf8.RuneSelf - 1
		}
		for lo <= hi {
			end := sequenceEnd(lo, hi)
			s := sequenceOf(lo, end)
			n += s.behind(&prev)
			prev, lo = s, end+1
		}
	}
	return n
}

// sequenceEnd is the last character up to hi which is one sequence of ranges of bytes with lo.
func sequenceEnd(lo, hi rune) rune {
	for _, most := range []rune{0x7f, 0x7ff, 0xffff} { // by their length in bytes
		if lo <= most {
			hi = min(hi, most)
			break
		}
	}
	if lo < utf8.RuneSelf {
		return hi
	}
	for bits := range utf8.UTFMax - 1 { // continuations are all of their range, or the bytes before are equal
		block := rune(1)<<(6*(bits+1)) - 1
		if lo&^block == hi&^block {
			return hi
		}
		if lo&block != 0 {
			return lo | block
		}
		if hi&block != block {
			return hi&^block - 1
		}
	}
	return hi
}
