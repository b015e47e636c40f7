// Package kind pins kind, and holds what it is given to run Berth's tests: see scripts/kind.sh.
package kind
