"""Mutants of the oracle: each operation on constants, wrong in one way."""

from tests.mutants.mutant import Mutant

__all__ = ["ORACLE"]


def _operation(does: str, old: str, new: str) -> Mutant:
    return Mutant(does, "coq/extraction/Oracle.v", ((old, new),))


ORACLE = [
    _operation("add is one too many", "Some (m + n)%Z", "Some (m + n + 1)%Z"),
    _operation("add joins strings backwards", "CString (s ++ t)", "CString (t ++ s)"),
    _operation("add joins tuples backwards", "VTuple (app vs ws)", "VTuple (app ws vs)"),
    _operation("sub is turned round", "Some (m - n)%Z", "Some (n - m)%Z"),
    _operation("mul adds", "Some (m * n)%Z", "Some (m + n)%Z"),
    _operation("floordiv rounds to zero", "Some (m / n)%Z", "Some (Z.quot m n)"),
    _operation("mod has the sign of the dividend", "Some (m mod n)%Z", "Some (Z.rem m n)"),
    _operation("pow is turned round", "Some (m ^ n)%Z", "Some (n ^ m)%Z"),
    _operation("neg does nothing", "int (- z)", "int z"),
    _operation("abs does nothing", "int (Z.abs z)", "int z"),
    _operation(
        "len of a string is one less",
        "int (Z.of_nat (String.length s))",
        "int (Z.of_nat (String.length s) - 1)",
    ),
    _operation(
        "len of a tuple is one more",
        "int_value (Z.of_nat (List.length vs))",
        "int_value (Z.of_nat (S (List.length vs)))",
    ),
    _operation(
        "negative indices are one off",
        "if Z.ltb index 0 then index + length else",
        "if Z.ltb index 0 then index + length - 1 else",
    ),
    _operation("slice has one item more", "firstn (clip j) vs", "firstn (S (clip j)) vs"),
    _operation("in asks for all items", "existsb (same v) vs", "forallb (same v) vs"),
    _operation("product begins with zero", "fold_left Z.mul zs 1%Z", "fold_left Z.mul zs 0%Z"),
    _operation(
        "min of a tuple is the greatest",
        "OMin, [DTuple ds] => extreme less ds",
        "OMin, [DTuple ds] => extreme (fun d e => less e d) ds",
    ),
    _operation(
        "max of two is the least",
        "OMax, _ :: _ :: _ => extreme (fun d e => less e d) ds",
        "OMax, _ :: _ :: _ => extreme less ds",
    ),
    _operation(
        "is_none of what is no literal",
        "Some v => same v (VConst (CNone : const)) | None => false",
        "Some v => same v (VConst (CNone : const)) | None => true",
    ),
    _operation(
        "is_value asks for any value",
        "Some v => same v w | None => false",
        "Some v => true | None => false",
    ),
    _operation(
        "strings have no order by length",
        "| EmptyString, String _ _ => true",
        "| EmptyString, String _ _ => false",
    ),
    _operation(
        "1 is not 1.0",
        "| Some r, Some s => same_size r s\n      | _, _ => constant_eqb c d",
        "| Some r, Some s => real_eqb r s\n      | _, _ => constant_eqb c d",
    ),
    _operation(
        "NaN is not bound to itself",
        "NegativeZero, NegativeZero | NotANumber, NotANumber => true",
        "NegativeZero, NegativeZero => true",
    ),
    _operation(
        "tuples with NaN have an order",
        "if negb (forallb in_order ds && forallb in_order es) then None else",
        "",
    ),
]
