package main

import (
	"fmt"
	"io"
	"strings"
	"unicode"

	"github.com/aymanbagabas/go-udiff"
)

// unified is what differs between two texts, as diff -u writes it; empty where they
// are the same.
func unified(from, to string, before, after []byte) (string, error) {
	a, b := string(before), string(after)
	text, err := udiff.ToUnified(from, to, a, udiff.Lines(a, b), udiff.DefaultContextLines)
	if err != nil {
		return "", fmt.Errorf("comparing %s with %s: %w", from, to, err)
	}
	return text, nil
}

// writeUnified writes it so that a terminal takes nothing in it for an order.
func writeUnified(w io.Writer, from, to string, before, after []byte) error {
	text, err := unified(from, to, before, after)
	if err != nil {
		return err
	}
	_, err = io.WriteString(w, strings.Map(visible, text))
	return err
}

// changedLines counts the lines that were added and removed.
func changedLines(before, after []byte) (added, removed int) {
	text, err := unified("", "", before, after)
	if err != nil {
		return 0, 0
	}
	n := 0
	for line := range strings.Lines(text) {
		switch n++; {
		case n <= 2: // the names
		case line[0] == '+':
			added++
		case line[0] == '-':
			removed++
		}
	}
	return added, removed
}

// visible keeps what a text says from being an order to the terminal.
func visible(r rune) rune {
	if !unicode.IsPrint(r) && r != '\t' && r != '\n' {
		return unicode.ReplacementChar
	}
	return r
}
