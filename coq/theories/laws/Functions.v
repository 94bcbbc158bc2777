(** * Functions of sums of products

    A function of a sum with a truth value in it is one of two values, chosen by the truth value.  What then
    is known of functions is their sign, and the order of values of which the greatest is taken. *)

From Coq Require Import List Bool ZArith QArith Qabs Ring Lia.
Import ListNotations.
From PyPM.laws Require Import Structures Expressions Polynomials Powers.

#[local] Arguments Qred : simpl never.

Definition number (c : Q) : poly := if Qeq_bool c 0 then [] else [(c, [])].
Definition opposite (p : poly) : poly := pscale (-1) [] p.

(** ** Truth values *)
Fixpoint exponent (e : expr) (m : mono) : Q :=
  match m with [] => 0 | (f, q) :: m => if same e f then q else exponent e m end.
Fixpoint without (e : expr) (m : mono) : mono :=
  match m with [] => [] | (f, q) :: m => if same e f then m else (f, q) :: without e m end.
Fixpoint when_true (e : expr) (p : poly) : poly :=
  match p with [] => [] | (c, m) :: p => plus c (without e m) (when_true e p) end.
Fixpoint when_false (e : expr) (p : poly) : poly :=
  match p with
  | [] => []
  | (c, m) :: p => if Qeq_bool (exponent e m) 0 then (c, m) :: when_false e p else when_false e p
  end.
Definition is_truth (f : factor) : bool := match fst f with Fn f _ => truth f | _ => false end.
Definition first_truth (p : poly) : option factor := find is_truth (flat_map snd p).
Fixpoint by_cases (fuel : nat) (f : poly -> poly) (p : poly) : poly :=
  match fuel, first_truth p with
  | S fuel, Some (e, _) =>
      let no := by_cases fuel f (when_false e p) in
      padd no (pmul (atom e) (padd (by_cases fuel f (when_true e p)) (opposite no)))
  | _, _ => f p
  end.
Definition most_cases : nat := 6.

(** ** Signs *)
Definition is_single (e : expr) : bool := match e with Cons _ Nil => true | _ => false end.
Definition is_pair (e : expr) : bool := match e with Cons _ (Cons _ Nil) => true | _ => false end.
Fixpoint integral (e : expr) : bool :=
  match e with
  | Num k => whole k
  | Size _ | Var _ => true
  | Nil => true
  | Add a b | Mul a b | Cons a b => integral a && integral b
  | Pow a q => integral a && whole q && Qle_bool 0 q
  | Fn f a => Z.eqb f rounding && is_single a || Z.eqb f greater && is_pair a && integral a
  | _ => false
  end.
Definition constant (p : poly) : Q := match p with (c, []) :: _ => c | _ => 0 end.
Definition leading (p : poly) : Q := match p with (c, _) :: _ => c | [] => 0 end.

Fixpoint reified (ps : list poly) : expr :=
  match ps with [] => Nil | p :: ps => Cons (reify p) (reified ps) end.
Definition held (f : Z) (ps : list poly) : poly := atom (Fn f (reified ps)).

(** Of a whole number and its opposite, one is above zero: the one without a positive number is written. *)
Definition is_above (p : poly) : poly :=
  if positive (reify p) then number 1
  else if nonneg (reify (opposite p)) then []
  else if integral (reify p) then
    if Qle_bool (constant p) 0 then held 0 [p]
    else padd (number 1) (opposite (held 0 [padd (number 1) (opposite p)]))
  else if Qeq_bool (leading p) 0 then held 0 [p]
  else held 0 [pscale (Qabs (/ leading p)) [] p].
Definition is_nothing (p : poly) : poly :=
  match p with
  | [] => number 1
  | _ => if positive (reify p) || positive (reify (opposite p)) then [] else held 1 [p]
  end.
Definition signed (f : Z) (p : poly) : poly :=
  if Qle_bool 0 (leading p) then held f [p]
  else if odd f then opposite (held f [opposite p]) else held f [opposite p].

(** ** The greatest of some values

    A value is the least of some clauses, each the greatest of some expressions: in order, each once, of
    numbers one, and no clause within another.  A factor that is not negative is a factor of each. *)
Definition clause : Type := list expr.
Definition term_of (e : expr) : Q * mono :=
  match e with Num c => (c, []) | Mul (Num c) a => (c, factors a) | _ => (1, factors e) end.
Fixpoint terms (e : expr) : poly := match e with Add a b => term_of a :: terms b | _ => [term_of e] end.
Definition literal (k : Q) (r : mono) (e : expr) : expr :=
  match pscale k r (terms e) with [(c, [])] => Num c | p => reify p end.
Fixpoint leading_of (e : expr) : Q :=
  match e with
  | Num c => c
  | Mul (Num c) (Num d) => c * d
  | Mul (Num c) _ => c
  | Add a _ => leading_of a
  | _ => 1
  end.
Fixpoint placed_in (e : expr) (l : clause) : clause :=
  match l with
  | [] => [e]
  | d :: l' =>
      match e, d with
      | Num a, Num b => (if Qle_bool a b then d else e) :: l'
      | _, _ => match cmp e d with Eq => l | Lt => e :: l | Gt => d :: placed_in e l' end
      end
  end.
(** What is certainly not above something else does not count beside it. *)
Definition below (d e : expr) : bool :=
  match d, e with
  | Num k, _ => Qle_bool k 0 && nonneg e
  | _, Num k => Qle_bool 0 k && nonneg (literal (-1) [] d)
  | _, _ => false
  end.
Definition entered (e : expr) (l : clause) : clause :=
  if existsb (below e) l then l else placed_in e (filter (fun d => negb (below d e)) l).
Definition joined (c d : clause) : clause := fold_right entered d c.
Definition within (c d : clause) : bool := forallb (fun e => existsb (fun f => same e f || below e f) d) c.
Definition added (c : clause) (cs : list clause) : list clause :=
  if existsb (fun d => within d c) cs then cs else c :: filter (fun d => negb (within c d)) cs.
Definition is_greater (e : expr) : bool :=
  match e with Fn f (Cons _ (Cons _ Nil)) => Z.eqb f greater | _ => false end.
(** The clauses of a multiple of a value *)
Fixpoint clauses (k : Q) (r : mono) (e : expr) : list clause :=
  match e with
  | Fn f (Cons a (Cons b Nil)) =>
      if Z.eqb f greater then
        if Qle_bool 0 k then flat_map (fun c => map (joined c) (clauses k r b)) (clauses k r a)
        else clauses k r a ++ clauses k r b
      else [[literal k r e]]
  | Mul a b =>
      match a with
      | Num c => clauses (Qred (k * c)) r b
      | _ =>
          if is_greater a && nonneg b then clauses k (mmul (factors b) r) a
          else if nonneg a then clauses k (mmul (factors a) r) b
          else [[literal k r e]]
      end
  | _ => [[literal k r e]]
  end.
Fixpoint greatest_of (c : clause) : expr :=
  match c with
  | [] => Num 0
  | [e] => e
  | e :: c => Fn greater (Cons e (Cons (greatest_of c) Nil))
  end.
Definition most_clauses : nat := 64.
Definition of_clauses (cs : list clause) : poly :=
  match cs with
  | [[Num k]] => number k
  | [c] => atom (greatest_of c)
  | _ => opposite (atom (greatest_of (fold_right entered [] (map (fun c => literal (-1) [] (greatest_of c)) cs))))
  end.
(** The unit: the leading number of the first of the expressions, where each is divided by its own. *)
Definition unit_of (e : expr) (u : option (expr * Q)) : option (expr * Q) :=
  let c := leading_of e in
  match e with
  | Num _ => u
  | _ =>
      if Qeq_bool c 0 then u else
      let d := literal (/ c) [] e in
      match u with
      | None => Some (d, Qred (Qabs c))
      | Some (f, q) =>
          match cmp d f with
          | Lt => Some (d, Qred (Qabs c))
          | Eq => if Qle_bool q (Qabs c) then u else Some (d, Qred (Qabs c))
          | Gt => u
          end
      end
  end.
Definition unit (cs : list clause) : Q :=
  match fold_right (fun c u => fold_right unit_of u c) None cs with Some (_, q) => q | None => 1 end.
(** Of a value and its opposite, one form is the opposite of the other. *)
Definition of_both (yes no : list clause) : poly :=
  let a := of_clauses (fold_right added [] yes) in
  let b := of_clauses (fold_right added [] no) in
  match cmp (reify a) (reify b) with Gt => opposite b | _ => a end.
Definition in_units (k : Q) (r : mono) (cs : list clause) : list clause :=
  map (fun c => fold_right entered [] (map (literal k r) c)) cs.
Definition of_units (yes no : list clause) : poly :=
  let u := unit yes in
  if Qle_bool u 0 || Qeq_bool u 1 then of_both yes no
  else pscale u [] (of_both (in_units (/ u) [] yes) (in_units (/ u) [] no)).
(** Positive denominators that are no sums leave the greatest of values. *)
Fixpoint lowest_power (f : factor) (m : mono) : mono :=
  match m with
  | [] => [f]
  | g :: m => if same (fst f) (fst g) then (if Qle_bool (snd f) (snd g) then f else g) :: m else g :: lowest_power f m
  end.
Definition denominators (m : mono) : mono :=
  fold_right lowest_power [] (filter (fun f => negb (is_sum (fst f)) && negative (snd f) && positive_f f) m).
Definition inverted (m : mono) : mono := map (fun f => (fst f, - snd f)) m.
Definition all_factors (cs : list clause) : mono := flat_map (fun c => flat_map (fun e => flat_map snd (terms e)) c) cs.
Definition of_value (yes no : list clause) : poly :=
  match denominators (all_factors yes) with
  | [] => of_units yes no
  | m => pscale 1 m (of_units (in_units 1 (inverted m) yes) (in_units 1 (inverted m) no))
  end.

Definition both (k : Q) (p q : poly) : list clause :=
  if Qle_bool 0 k then flat_map (fun c => map (joined c) (clauses k [] (reify q))) (clauses k [] (reify p))
  else clauses k [] (reify p) ++ clauses k [] (reify q).
Definition pgreater (p q : poly) : poly :=
  if Nat.leb most_clauses (length (clauses 1 [] (reify p)) * length (clauses 1 [] (reify q))) then held greater [p; q] else
  let yes := both 1 p q in
  match fold_right added [] yes with
  | [[e]] =>
      if same e (literal 1 [] (reify p)) then p else if same e (literal 1 [] (reify q)) then q
      else of_value yes (both (-1) p q)
  | _ => of_value yes (both (-1) p q)
  end.

(** Rounding keeps the order, and whole numbers. *)
Definition rounded_literal (e : expr) : expr :=
  if integral e then e
  else if Qle_bool 0 (leading_of e) then Fn rounding (Cons e Nil)
  else literal (-1) [] (Fn rounding (Cons (literal (-1) [] e) Nil)).
Definition rounded_clauses (cs : list clause) : list clause :=
  map (fun c => fold_right entered [] (map rounded_literal c)) cs.
Definition pround (p : poly) : poly :=
  if integral (reify p) then p else
  match clauses 1 [] (reify p) with
  | [[_]] => signed rounding p
  | yes => of_value (rounded_clauses yes) (rounded_clauses (clauses (-1) [] (reify p)))
  end.

(** A number of a type is rounded already. *)
Definition psettled (f : Z) (p : poly) : poly :=
  match p with
  | [(c, [(Fn g (Cons _ Nil), q)])] => if Qeq_bool c 1 && Qeq_bool q 1 && Z.eqb g f then p else held f [p]
  | _ => held f [p]
  end.

(** ** All functions, of arguments that are polynomials *)
Definition direct (f : Z) (ps : list poly) : poly :=
  match ps with
  | [p] =>
      if Z.eqb f 0 then is_above p
      else if Z.eqb f 1 then is_nothing p
      else if Z.eqb f rounding then pround p
      else if odd f || symmetric f then signed f p
      else if settling f then psettled f p
      else held f ps
  | [p; q] => if Z.eqb f greater then pgreater p q else held f ps
  | _ => held f ps
  end.
Fixpoint each_case (f : list poly -> poly) (before ps : list poly) : poly :=
  match ps with
  | [] => f before
  | p :: ps => by_cases most_cases (fun p => each_case f (before ++ [p]) ps) p
  end.
Definition function (f : Z) (ps : list poly) : poly :=
  if Z.eqb f log then match ps with [p] => plog p | _ => held f ps end
  else each_case (direct f) [] ps.

(** ** They denote what they should *)
Section Denotation.
Context {A : structure} (In : inputs A).
Add Ring A_ring : (ring_laws A).
Notation den := (den In).
Notation dens := (dens In).
Notation def := (def In).
Notation den_m := (den_m In).
Notation ok_m := (ok_m In).
Notation is_m := (is_m In).
Notation is_p := (is_p In).
Notation is_e := (is_e In).

Lemma number_is I c : is_p I (number c) (num c).
Proof.
  unfold number. destruct (Qeq_bool c 0) eqn:E.
  - rewrite (num_zero_bool _ E). now split.
  - split; cbn; auto. ring.
Qed.
Lemma one_is I : is_p I (number 1) one.
Proof. rewrite <- num_1. apply number_is. Qed.
Lemma num_minus : num (-1) = opp (one : A).
Proof. rewrite <- num_1. apply (num_opp 1). Qed.
Lemma opposite_is I p x : is_p I p x -> is_p I (opposite p) (opp x).
Proof.
  intros P. replace (opp x) with (mul (mul (num (-1)) one) x) by (rewrite num_minus; ring).
  apply pscale_is; [now split | exact P].
Qed.

(** *** Cases *)
Lemma exponent_is I e m : ok_m I m -> ok (den I e) (exponent e m) /\ ok_m I (without e m) /\
  den_m I m = mul (pw (den I e) (exponent e m)) (den_m I (without e m)).
Proof.
  induction m as [| [f q] m IH]; cbn [exponent without]; intros O.
  - split; [apply ok_0 | split; [exact Logic.I |]]. rewrite pw_0. cbn. ring.
  - destruct O as [[D K] O]. destruct (same e f) eqn:E.
    + apply same_eq in E as <-. auto.
    + destruct (IH O) as (K' & O' & S). split; auto. split; [cbn; auto |]. cbn. rewrite S. ring.
Qed.
Lemma when_true_is I e p x : is_p I p x -> den I e = one -> is_p I (when_true e p) x.
Proof.
  intros [O <-] E. induction p as [| [c m] p IH]; [now split |]. destruct O as [Om O].
  destruct (exponent_is I e m Om) as (_ & Ow & S). rewrite E, pw_one in S.
  cbn [when_true]. change (is_p I (plus c (without e m) (when_true e p)) (add (mul (num c) (den_m I m)) (den_p In I p))).
  apply plus_is; [split; [exact Ow |] | now apply IH]. rewrite S. ring.
Qed.
Lemma when_false_is I e p x : is_p I p x -> den I e = zero -> is_p I (when_false e p) x.
Proof.
  intros [O <-] E. induction p as [| [c m] p IH]; [now split |]. destruct O as [Om O].
  destruct (IH O) as [O' S']. cbn [when_false]. destruct (Qeq_bool (exponent e m) 0) eqn:Z.
  - split; [now split |]. cbn. now rewrite S'.
  - destruct (exponent_is I e m Om) as (K & _ & S). rewrite E in K, S. apply Qeq_bool_neq in Z.
    assert (P : 0 < exponent e m).
    { destruct (Qlt_le_dec 0 (exponent e m)) as [| L]; auto. exfalso. apply Qle_lteq in L as [L | L]; auto.
      now apply K in L. }
    split; [exact O' |]. rewrite S', (pw_zero A _ P) in *. cbn. rewrite S. ring.
Qed.
Lemma first_truth_is I p x e q : is_p I p x -> first_truth p = Some (e, q) ->
  def I e /\ (den I e = zero \/ den I e = one).
Proof.
  intros P F. apply find_some in F as [M T]. unfold is_truth in T. cbn in T.
  assert (D : def I e).
  { pose proof (ok_candidates In I p x P) as O. clear P T. induction (flat_map snd p) as [| [f r] m IH]; [easy |].
    destruct O as [[D _] O]. destruct M as [[= -> ->] | M]; auto. }
  split; [exact D |]. destruct e; try discriminate. now apply fn_truth.
Qed.
Lemma by_cases_is I (f : poly -> poly) (g : A -> A) : (forall p x, is_p I p x -> is_p I (f p) (g x)) ->
  forall fuel p x, is_p I p x -> is_p I (by_cases fuel f p) (g x).
Proof.
  intros H. induction fuel as [| fuel IH]; intros p x P; cbn [by_cases]; [now apply H |].
  destruct (first_truth p) as [[e q] |] eqn:F; [| now apply H].
  destruct (first_truth_is I p x e q P F) as [D T]. set (yes := when_true e p). set (no := when_false e p).
  assert (Any : forall p, ok_p In I p -> is_p I p (den_p In I p)) by now split.
  assert (Oy : ok_p In I yes).
  { unfold yes. destruct P as [O _]. clear - O. induction p as [| [c m] p IH]; [easy |]. destruct O as [Om O].
    cbn [when_true]. destruct (exponent_is I e m Om) as (_ & Ow & _).
    exact (proj1 (plus_is In I c _ _ _ _ (conj Ow eq_refl) (conj (IH O) eq_refl))). }
  assert (On : ok_p In I no).
  { unfold no. destruct P as [O _]. clear - O. induction p as [| [c m] p IH]; [easy |]. destruct O as [Om O].
    cbn [when_false]. destruct (Qeq_bool _ 0); [split |]; auto. }
  assert (Sum : forall y n, is_p I (by_cases fuel f yes) y -> is_p I (by_cases fuel f no) n ->
    is_p I (padd (by_cases fuel f no) (pmul (atom e) (padd (by_cases fuel f yes) (opposite (by_cases fuel f no)))))
      (add n (mul (den I e) (add y (opp n))))).
  { intros y n Y N. apply padd_is; [exact N |]. apply pmul_is; [now apply atom_is |].
    apply padd_is; [exact Y | now apply opposite_is]. }
  destruct T as [T | T].
  - pose proof (Sum _ _ (IH _ _ (Any _ Oy)) (IH _ _ (when_false_is I e p x P T))) as S. rewrite T in S.
    replace (g x) with (add (g x) (mul zero (add (g (den_p In I yes)) (opp (g x))))) by ring. exact S.
  - pose proof (Sum _ _ (IH _ _ (when_true_is I e p x P T)) (IH _ _ (Any _ On))) as S. rewrite T in S.
    replace (g x) with (add (g (den_p In I no)) (mul one (add (g x) (opp (g (den_p In I no)))))) by ring. exact S.
Qed.

(** *** Signs *)
Definition is_whole (x : A) : Prop := exists z, x = num (inject_Z z).
Lemma larger_num a b : a <= b -> fn greater [num a; num b] = (num b : A).
Proof.
  intros L. apply greater_above. replace (sub (num b) (num a)) with (num (b - a) : A).
  - apply num_nn. now apply (proj1 (Qle_minus_iff a b)).
  - unfold Qminus. rewrite num_plus, num_opp. ring.
Qed.
Lemma larger_whole (x y : A) : is_whole x -> is_whole y -> is_whole (fn greater [x; y]).
Proof.
  intros [a ->] [b ->]. destruct (Z.le_ge_cases a b) as [L | L].
  - exists b. apply larger_num. now rewrite <- Zle_Qle.
  - exists a. rewrite greater_swap. apply larger_num. now rewrite <- Zle_Qle.
Qed.
Lemma all_integral I e : integral e = true -> def I e -> is_whole (den I e) /\ Forall is_whole (dens I e).
Proof.
  assert (Zero : is_whole zero) by (exists 0%Z; change (zero = num 0 :> A); now rewrite num_0).
  induction e; cbn -[Z.eqb]; try discriminate; intros H D; (split; [| try constructor]); auto.
  - exists (whole_of q). apply num_eq. now apply whole_of_spec.
  - now eexists.
  - destruct D as [i ->]. now exists (Z.of_nat i).
  - apply andb_prop in H as [H _]. now apply IHe1.
  - apply andb_prop in H as [_ H]. now apply IHe2.
  - apply andb_prop in H as [H H']. destruct D as [D D'].
    destruct (IHe1 H D) as [[y ->] _], (IHe2 H' D') as [[z ->] _]. exists (y + z)%Z. now rewrite inject_Z_plus, num_plus.
  - apply andb_prop in H as [H H']. destruct D as [D D'].
    destruct (IHe1 H D) as [[y ->] _], (IHe2 H' D') as [[z ->] _]. exists (y * z)%Z. now rewrite inject_Z_mult, num_mult.
  - apply andb_prop in H as [H L]. apply andb_prop in H as [H W]. apply Qle_bool_iff in L. destruct D as [D _].
    destruct (IHe H D) as [[z ->] _]. unfold is_whole. rewrite (pw_eq A _ _ _ (whole_of_spec q W)).
    assert (N : (0 <= whole_of q)%Z) by (rewrite Zle_Qle; now rewrite <- (whole_of_spec q W)).
    rewrite <- (Z2Nat.id _ N), pw_num_nat. exists (z ^ Z.of_nat (Z.to_nat (whole_of q)))%Z. apply num_eq.
    symmetry. apply Qpower.Zpower_Qpower. lia.
  - destruct D as [D _]. apply orb_prop in H as [H | H]; [| apply andb_prop in H as [H G]]; apply andb_prop in H as [H P];
      apply Z.eqb_eq in H as ->.
    + destruct e as [| | | | | a b | | | | | | | |]; try discriminate. destruct b; try discriminate. apply rounding_is.
    + destruct e as [| | | | | a b | | | | | | | |]; try discriminate. destruct b as [| | | | | b c | | | | | | | |]; try discriminate.
      destruct c; try discriminate. destruct (IHe G D) as [_ F]. inversion F as [| x l X F' E]; subst.
      inversion F' as [| y l Y _ E']; subst. now apply larger_whole.
Qed.
Lemma integral_is I e : integral e = true -> def I e -> is_whole (den I e).
Proof. intros H D. now apply all_integral. Qed.
Lemma held_is I f ps xs : Forall2 (is_p I) ps xs -> defined f xs -> is_p I (held f ps) (fn f xs).
Proof.
  intros H K. assert (R : def I (reified ps) /\ dens I (reified ps) = xs).
  { clear K. induction H as [| p x ps xs P _ [D E]]; [now split |]. destruct (reify_is In I p x P) as [D' E'].
    split; [now split | cbn; now rewrite <- E', <- E]. }
  destruct R as [D E]. rewrite <- E in K |- *. apply (atom_is In I (Fn f (reified ps))). now split.
Qed.
Lemma held_one I f p x : f <> log -> is_p I p x -> is_p I (held f [p]) (fn f [x]).
Proof. intros N P. apply held_is; [auto | now intros E]. Qed.
Lemma above_whole z : fn 0 [num (inject_Z z) : A] = if Z.ltb 0 z then one else zero.
Proof.
  destruct (Z.ltb_spec 0 z) as [L | L].
  - assert (P : above (num (inject_Z z) : A)) by (apply above_num; change 0 with (inject_Z 0); now rewrite <- Zlt_Qlt).
    apply fn_positive; apply P.
  - replace (num (inject_Z z)) with (opp (num (inject_Z (- z))) : A).
    + apply fn_not_positive, num_nn. change 0 with (inject_Z 0). rewrite <- Zle_Qle. lia.
    + rewrite <- num_opp. apply num_eq. now rewrite <- inject_Z_opp, Z.opp_involutive.
Qed.
Lemma is_above_is I p x : is_p I p x -> is_p I (is_above p) (fn 0 [x]).
Proof.
  intros P. destruct (reify_is In I p x P) as [D E]. pose proof (held_one I 0 p x ltac:(discriminate) P) as H.
  destruct (reify_is In I _ _ (opposite_is I p x P)) as [D' E']. unfold is_above.
  destruct (positive (reify p)) eqn:C.
  { pose proof (positive_is In _ I C D) as S. rewrite E in S. rewrite fn_positive by apply S. apply one_is. }
  destruct (nonneg (reify (opposite p))) eqn:N.
  { pose proof (nonneg_is In _ I N D') as S. rewrite E' in S. replace x with (opp (opp x)) by ring.
    rewrite fn_not_positive by exact S. now split. }
  destruct (integral (reify p)) eqn:W.
  - destruct (Qle_bool (constant p) 0); [exact H |].
    destruct (integral_is I _ W D) as [z Z]. rewrite E in Z. clear D E D' E' H. subst x.
    set (y := num (inject_Z z)) in *. replace (fn 0 [y]) with (add one (opp (fn 0 [add one (opp y)]))).
    + apply padd_is; [apply one_is |]. apply opposite_is, held_one; [discriminate |].
      apply padd_is; [apply one_is | now apply opposite_is].
    + replace (add one (opp y)) with (num (inject_Z (1 - z)) : A).
      * unfold y. rewrite !above_whole. destruct (Z.ltb_spec 0 z), (Z.ltb_spec 0 (1 - z)); try lia; ring.
      * unfold y. rewrite <- num_opp, <- num_1, <- num_plus. apply num_eq.
        unfold Z.sub. now rewrite inject_Z_plus, inject_Z_opp.
  - destruct (Qeq_bool (leading p) 0) eqn:L; [exact H |]. apply Qeq_bool_neq in L.
    assert (K : 0 < Qabs (/ leading p)).
    { destruct (Qlt_le_dec 0 (Qabs (/ leading p))) as [| K]; auto. exfalso. apply L.
      assert (Z : Qabs (/ leading p) == 0) by (apply Qle_antisym; [exact K | apply Qabs_nonneg]).
      rewrite <- (Qinv_involutive (leading p)). destruct (Qlt_le_dec (/ leading p) 0) as [G | G].
      - rewrite Qabs_neg in Z by now apply Qlt_le_weak. rewrite <- (Qopp_involutive (/ leading p)), Z. reflexivity.
      - rewrite Qabs_pos in Z by assumption. rewrite Z. reflexivity. }
    rewrite <- (fn_scaled A _ x K). apply held_one; [discriminate |].
    replace (mul (num (Qabs (/ leading p))) x) with (mul (mul (num (Qabs (/ leading p))) one) x) by ring.
    apply pscale_is; [now split | exact P].
Qed.
Lemma opp_apart (x : A) : opp x <> zero -> x <> zero.
Proof. intros N ->. apply N. ring. Qed.
Lemma is_nothing_is I p x : is_p I p x -> is_p I (is_nothing p) (fn 1 [x]).
Proof.
  intros P. destruct (reify_is In I p x P) as [D E]. destruct (reify_is In I _ _ (opposite_is I p x P)) as [D' E'].
  unfold is_nothing. destruct p as [| t p].
  - destruct P as [_ <-]. cbn. rewrite fn_of_zero. apply one_is.
  - destruct (_ || _) eqn:C; [| apply held_one; [discriminate | exact P]].
    rewrite fn_zero; [now split |]. apply orb_prop in C as [C | C].
    + pose proof (positive_is In _ I C D) as S. rewrite E in S. apply S.
    + pose proof (positive_is In _ I C D') as S. rewrite E' in S. apply opp_apart, S.
Qed.
Lemma signed_is I f p x : odd f || symmetric f = true -> is_p I p x -> is_p I (signed f p) (fn f [x]).
Proof.
  intros S P. assert (N : f <> log) by (intros ->; discriminate). unfold signed.
  destruct (Qle_bool 0 (leading p)); [now apply held_one |].
  replace x with (opp (opp x)) by ring. destruct (odd f) eqn:O.
  - rewrite fn_odd by assumption. apply opposite_is, held_one; [exact N | now apply opposite_is].
  - rewrite fn_symmetric by assumption. apply held_one; [exact N | now apply opposite_is].
Qed.

(** *** The greatest of some values *)
Definition larger (x y : A) : A := fn greater [x; y].
Lemma larger_same x : larger x x = x.
Proof. apply greater_above. replace (sub x x) with (num 0 : A) by (rewrite num_0; ring). now apply num_nn. Qed.
Lemma larger_joined x y z : larger (larger x y) z = larger x (larger y z).
Proof. apply greater_joined. Qed.
Lemma larger_swap x y : larger x y = larger y x.
Proof. apply greater_swap. Qed.
Lemma larger_twice x y : larger x (larger x y) = larger x y.
Proof. now rewrite <- larger_joined, larger_same. Qed.
Lemma larger_nums a b : a <= b -> larger (num a) (num b) = (num b : A).
Proof. apply larger_num. Qed.

Definition join (x y : option A) : option A :=
  match x, y with
  | Some x, Some y => Some (larger x y)
  | Some x, None | None, Some x => Some x
  | None, None => None
  end.
Lemma join_joined x y z : join (join x y) z = join x (join y z).
Proof. destruct x, y, z; cbn; auto. now rewrite larger_joined. Qed.
Lemma join_swap x y : join x y = join y x.
Proof. destruct x, y; cbn; auto. now rewrite larger_swap. Qed.
Lemma join_twice x y : join (Some x) (join (Some x) y) = join (Some x) y.
Proof. rewrite <- join_joined. cbn. now rewrite larger_same. Qed.
Fixpoint top I (c : clause) : option A :=
  match c with [] => None | e :: c => join (Some (den I e)) (top I c) end.
Definition smaller (x y : A) : A := opp (larger (opp x) (opp y)).
Lemma opp_opp (x : A) : opp (opp x) = x.
Proof. ring. Qed.
Lemma smaller_swap x y : smaller x y = smaller y x.
Proof. unfold smaller. now rewrite larger_swap. Qed.
Lemma smaller_joined x y z : smaller (smaller x y) z = smaller x (smaller y z).
Proof. unfold smaller. now rewrite !opp_opp, larger_joined. Qed.
Lemma smaller_same x : smaller x x = x.
Proof. unfold smaller. rewrite larger_same. apply opp_opp. Qed.
Lemma smaller_larger x y : smaller x (larger x y) = x.
Proof.
  unfold smaller. rewrite larger_swap. unfold larger at 1. rewrite greater_above; [apply opp_opp |].
  replace (sub (opp x) (opp (larger x y))) with (sub (larger x y) x) by ring. apply greater_least.
Qed.
Lemma larger_smaller x y z : larger (smaller x y) z = smaller (larger x z) (larger y z).
Proof.
  unfold smaller. unfold larger at 1 2. rewrite greater_lesser. fold (larger (opp (opp x)) z).
  fold (larger (opp (opp y)) z). now rewrite !opp_opp.
Qed.

Notation times k x := (mul (num k) x).
Lemma term_of_is I e : def I e -> ok_m I (snd (term_of e)) /\ times (fst (term_of e)) (den_m I (snd (term_of e))) = den I e.
Proof.
  assert (Plain : forall e, def I e -> ok_m I (factors e) /\ times 1 (den_m I (factors e)) = den I e).
  { intros d D. destruct (factors_is In I d D) as [O E]. split; [exact O |]. rewrite E, num_1. ring. }
  intros D. destruct e; try (now apply Plain).
  - split; [exact Logic.I |]. cbn. ring.
  - destruct e1; try (now apply Plain). destruct D as [_ D]. destruct (factors_is In I e2 D) as [O E].
    split; [exact O |]. cbn. now rewrite E.
Qed.
Lemma terms_is I e : def I e -> is_p I (terms e) (den I e).
Proof.
  assert (One : forall e, def I e -> is_p I [term_of e] (den I e)).
  { intros d D. destruct (term_of_is I d D) as [O E]. destruct (term_of d) as [c m]. cbn [fst snd] in *.
    rewrite <- E. now apply term_is. }
  induction e; intros D; try (now apply One). destruct D as [D D']. destruct (term_of_is I e1 D) as [O E], (IHe2 D') as [O' E'].
  cbn [terms]. destruct (term_of e1) as [c m]. cbn [fst snd] in *. split; [now split |].
  cbn. now rewrite E', E.
Qed.
Lemma literal_is I k r e : ok_m I r -> def I e ->
  def I (literal k r e) /\ den I (literal k r e) = mul (mul (num k) (den_m I r)) (den I e).
Proof.
  intros O D. assert (G : is_p I (pscale k r (terms e)) (mul (mul (num k) (den_m I r)) (den I e))).
  { apply pscale_is; [now split | now apply terms_is]. }
  unfold literal. destruct (pscale k r (terms e)) as [| [c [| f m]] [| t p]]; try (now apply (reify_is In I)).
  destruct G as [_ <-]. split; [exact Logic.I |]. cbn. ring.
Qed.
Lemma plain_literal_is I k e : def I e -> def I (literal k [] e) /\ den I (literal k [] e) = times k (den I e).
Proof.
  intros D. destruct (literal_is I k [] e Logic.I D) as [D' E]. split; [exact D' |]. rewrite E. cbn. ring.
Qed.
Definition is_c I (c : clause) (x : A) : Prop := Forall (def I) c /\ top I c = Some x.
Inductive is_cs I : list clause -> A -> Prop :=
| One_clause c x : is_c I c x -> is_cs I [c] x
| More_clauses c cs x y : is_c I c x -> is_cs I cs y -> is_cs I (c :: cs) (smaller x y).

Lemma placed_in_is I e l : def I e -> Forall (def I) l ->
  Forall (def I) (placed_in e l) /\ top I (placed_in e l) = join (Some (den I e)) (top I l).
Proof.
  intros D. induction 1 as [| d l Dd F IH]; [cbn; auto |].
  assert (Ordered : let r := match cmp e d with Eq => d :: l | Lt => e :: d :: l | Gt => d :: placed_in e l end in
    Forall (def I) r /\ top I r = join (Some (den I e)) (top I (d :: l))).
  { cbv zeta. destruct (cmp e d) eqn:C; [| split; auto |].
    - apply cmp_eq in C as <-. split; auto. cbn [top]. now rewrite join_twice.
    - destruct IH as [F' S]. split; auto. cbn [top]. rewrite S, <- !join_joined.
      now rewrite (join_swap (Some (den I d))). }
  destruct e as [a | | | | | | | | | | | | |]; try exact Ordered.
  destruct d as [b | | | | | | | | | | | | |]; try exact Ordered. clear Ordered. cbn [placed_in top].
  rewrite <- join_joined. cbn [join Expressions.den]. destruct (Qle_bool a b) eqn:L.
  - apply Qle_bool_iff in L. rewrite larger_nums by exact L. split; auto.
  - assert (G : b <= a).
    { destruct (Qlt_le_dec b a) as [G | G]; [now apply Qlt_le_weak |]. apply Qle_bool_iff in G. congruence. }
    rewrite larger_swap, larger_nums by exact G. split; auto.
Qed.
Lemma below_is I d e : def I d -> def I e -> below d e = true -> larger (den I d) (den I e) = den I e.
Proof.
  intros D E H. assert (Neg : forall a b, nn a -> nn (opp b) -> larger b a = a).
  { intros a b P N. apply greater_above. replace (sub a b) with (add a (opp b)) by ring. now apply nn_add. }
  assert (Low : forall k, d = Num k -> Qle_bool k 0 && nonneg e = true -> larger (den I d) (den I e) = den I e).
  { intros k -> C. apply andb_prop in C as [K C]. apply Qle_bool_iff in K. apply Neg; [now apply (nonneg_is In e I) |].
    cbn. rewrite <- num_opp. apply num_nn. now apply (Qopp_le_compat k 0). }
  assert (High : forall k, e = Num k -> Qle_bool 0 k && nonneg (literal (-1) [] d) = true ->
    larger (den I d) (den I e) = den I e).
  { intros k -> C. apply andb_prop in C as [K C]. apply Qle_bool_iff in K. destruct (plain_literal_is I (-1) d D) as [D' L].
    apply Neg; [now apply num_nn |]. pose proof (nonneg_is In _ I C D') as N. rewrite L, num_minus in N.
    now replace (opp (den I d)) with (mul (opp one) (den I d)) by ring. }
  destruct d as [k | | | | | | | | | | | | |]; [now apply (Low k) | ..];
    (destruct e as [k | | | | | | | | | | | | |]; try discriminate; now apply (High k)).
Qed.
Lemma entered_is I e l : def I e -> Forall (def I) l ->
  Forall (def I) (entered e l) /\ top I (entered e l) = join (Some (den I e)) (top I l).
Proof.
  intros D F. unfold entered. destruct (existsb (below e) l) eqn:B.
  - split; [exact F |]. apply existsb_exists in B as (f & M & B). symmetry.
    clear - D F M B. induction F as [| d l Dd F IH]; [destruct M |]. cbn [top]. destruct M as [-> | M].
    + rewrite <- join_joined. cbn [join]. now rewrite (below_is I e f D Dd B).
    + rewrite <- join_joined, (join_swap (Some (den I e))), join_joined. now rewrite IH.
  - clear B. assert (H : Forall (def I) (filter (fun d => negb (below d e)) l) /\
      join (Some (den I e)) (top I (filter (fun d => negb (below d e)) l)) = join (Some (den I e)) (top I l)).
    { induction F as [| d l Dd F [F' S]]; [split; [constructor | reflexivity] |]. cbn [filter top].
      destruct (below d e) eqn:B; cbn [negb].
      - split; [exact F' |]. rewrite <- join_joined. cbn [join]. now rewrite larger_swap, (below_is I d e Dd D B).
      - split; [now constructor |]. cbn [top]. rewrite <- !join_joined, (join_swap _ (Some (den I d))), !join_joined.
        now rewrite S. }
    destruct H as [F' S]. destruct (placed_in_is I e _ D F') as [F'' S']. split; [exact F'' |]. now rewrite S'.
Qed.
Lemma joined_is I c d x y : is_c I c x -> is_c I d y -> is_c I (joined c d) (larger x y).
Proof.
  intros [F S] [G R]. assert (H : Forall (def I) (joined c d) /\ top I (joined c d) = join (top I c) (top I d)).
  { clear S. induction F as [| e c D F [F' S']]; [cbn; now destruct (top I d) |].
    cbn [joined fold_right]. destruct (entered_is I e (joined c d) D F') as [F'' S'']. split; [exact F'' |].
    cbn [top]. rewrite join_joined, <- S'. exact S''. }
  destruct H as [F' S']. split; [exact F' |]. now rewrite S', S, R.
Qed.
Lemma app_cs I cs ds x y : is_cs I cs x -> is_cs I ds y -> is_cs I (cs ++ ds) (smaller x y).
Proof.
  intros H K. induction H as [c x C | c cs x z C _ IH]; cbn; [now constructor |].
  rewrite smaller_joined. now constructor.
Qed.
Lemma map_cs I c ds x y : is_c I c x -> is_cs I ds y -> is_cs I (map (joined c) ds) (larger x y).
Proof.
  intros C H. induction H as [d y D | d ds y z D _ IH]; cbn; [constructor; now apply joined_is |].
  rewrite larger_swap, larger_smaller, (larger_swap y), (larger_swap z). constructor; [now apply joined_is | exact IH].
Qed.
Lemma product_cs I cs ds x y : is_cs I cs x -> is_cs I ds y ->
  is_cs I (flat_map (fun c => map (joined c) ds) cs) (larger x y).
Proof.
  intros H K. induction H as [c x C | c cs x z C _ IH]; cbn; [rewrite app_nil_r; now apply map_cs |].
  rewrite larger_smaller. apply app_cs; [now apply map_cs | exact IH].
Qed.

Notation scale I k r x := (mul (mul (num k) (den_m I r)) x).
Lemma literal_cs I k r e : ok_m I r -> def I e -> is_cs I [[literal k r e]] (scale I k r (den I e)).
Proof. intros O D. destruct (literal_is I k r e O D) as [L E]. constructor. split; [auto | cbn; now rewrite E]. Qed.
Lemma scaled_larger (k x y : A) : nn k -> larger (mul k x) (mul k y) = mul k (larger x y).
Proof. apply greater_scaled. Qed.
Lemma scaled_smaller (k x y : A) : nn (opp k) -> smaller (mul k x) (mul k y) = mul k (larger x y).
Proof.
  intros L. unfold smaller. assert (N : forall z : A, opp (mul k z) = mul (opp k) z) by (intros; ring).
  rewrite !N, scaled_larger by exact L. ring.
Qed.
Definition scales I (r : mono) : Prop := ok_m I r /\ nn (den_m I r).
Lemma scales_more I r e : scales I r -> def I e -> nonneg e = true -> scales I (mmul (factors e) r) /\
  den_m I (mmul (factors e) r) = mul (den I e) (den_m I r).
Proof.
  intros [O P] D H. destruct (mmul_is In I (factors e) r _ _ (factors_is In I e D) (conj O eq_refl)) as [O' E].
  split; [split; [exact O' |] | exact E]. rewrite E. apply nn_mul; [now apply (nonneg_is In e I) | exact P].
Qed.
Lemma clauses_is I e : def I e -> forall k r, scales I r -> is_cs I (clauses k r e) (scale I k r (den I e)).
Proof.
  assert (H : forall e : expr, (def I e -> forall k r, scales I r -> is_cs I (clauses k r e) (scale I k r (den I e))) /\
    match e return Prop with
    | Cons b Nil => def I b -> forall k r, scales I r -> is_cs I (clauses k r b) (scale I k r (den I b))
    | Cons a (Cons b Nil) => def I a /\ def I b -> forall k r, scales I r -> is_cs I
        (if Qle_bool 0 k then flat_map (fun c => map (joined c) (clauses k r b)) (clauses k r a) else clauses k r a ++ clauses k r b)
        (scale I k r (larger (den I a) (den I b)))
    | _ => True
    end).
  { clear e. induction e; (split; [try (intros D k r R; exact (literal_cs I k r _ (proj1 R) D)) | try exact Logic.I]).
    - destruct e2; try exact Logic.I; [apply IHe1 |]. destruct e2_2; try exact Logic.I. intros [D D'] k r R.
      pose proof (proj1 IHe1 D k r R) as H. pose proof (proj2 IHe2 D' k r R) as K. destruct (Qle_bool 0 k) eqn:S.
      + apply Qle_bool_iff in S. rewrite <- scaled_larger; [now apply product_cs |].
        apply nn_mul; [now apply num_nn | apply R].
      + assert (L : k <= 0).
        { destruct (Qlt_le_dec 0 k) as [G | G]; auto. apply Qlt_le_weak, Qle_bool_iff in G. congruence. }
        rewrite <- scaled_smaller; [now apply app_cs |].
        replace (opp (mul (num k) (den_m I r))) with (mul (num (- k)) (den_m I r)) by (rewrite num_opp; ring).
        apply nn_mul; [apply num_nn; now apply (Qopp_le_compat k 0) | apply R].
    - intros D k r R. destruct D as [D D']. cbn [clauses].
      assert (Rest : is_cs I (if is_greater e1 && nonneg e2 then clauses k (mmul (factors e2) r) e1
        else if nonneg e1 then clauses k (mmul (factors e1) r) e2 else [[literal k r (Mul e1 e2)]])
        (scale I k r (den I (Mul e1 e2)))).
      { destruct (is_greater e1 && nonneg e2) eqn:C; [| destruct (nonneg e1) eqn:N].
        - apply andb_prop in C as [_ N]. destruct (scales_more I r e2 R D' N) as [R' E].
          pose proof (proj1 IHe1 D k _ R') as H. rewrite E in H.
          replace (scale I k r (den I (Mul e1 e2))) with (mul (mul (num k) (mul (den I e2) (den_m I r))) (den I e1)); [exact H |].
          cbn. ring.
        - destruct (scales_more I r e1 R D N) as [R' E]. pose proof (proj1 IHe2 D' k _ R') as H. rewrite E in H.
          replace (scale I k r (den I (Mul e1 e2))) with (mul (mul (num k) (mul (den I e1) (den_m I r))) (den I e2)); [exact H |].
          cbn. ring.
        - apply literal_cs; [apply R | now split]. }
      destruct e1; try exact Rest. pose proof (proj1 IHe2 D' (Qred (k * q)) r R) as H. rewrite num_red, num_mult in H.
      replace (scale I k r (den I (Mul (Num q) e2))) with (mul (mul (mul (num k) (num q)) (den_m I r)) (den I e2)); [exact H |].
      cbn. ring.
    - intros D k r R. cbn [clauses]. destruct e; try (exact (literal_cs I k r _ (proj1 R) D)).
      destruct e2; try (exact (literal_cs I k r _ (proj1 R) D)).
      destruct e2_2; try (exact (literal_cs I k r _ (proj1 R) D)).
      destruct (Z.eqb_spec f greater) as [-> |]; [| exact (literal_cs I k r _ (proj1 R) D)].
      apply IHe; [| exact R]. destruct D as [(D & D' & _) _]. now split. }
  apply H.
Qed.
Lemma scales_none I : scales I [].
Proof. split; [exact Logic.I | apply above_one]. Qed.
Lemma plain_clauses_is I k e : def I e -> is_cs I (clauses k [] e) (times k (den I e)).
Proof.
  intros D. pose proof (clauses_is I e D k [] (scales_none I)) as H.
  replace (times k (den I e)) with (scale I k [] (den I e)); [exact H |]. cbn. ring.
Qed.

Lemma within_is I c d x y : is_c I c x -> is_c I d y -> within c d = true -> larger x y = y.
Proof.
  intros [F S] [G R] W. assert (Each : forall e, def I e -> existsb (fun f => same e f || below e f) d = true ->
    join (Some (den I e)) (Some y) = Some y).
  { intros e De E. rewrite <- R. clear - De G E. induction G as [| d' d Dd G IH]; [discriminate |]. cbn [existsb top] in *.
    apply orb_prop in E as [E | E]; [apply orb_prop in E as [E | E] |].
    - apply same_eq in E as <-. now rewrite join_twice.
    - rewrite <- join_joined. cbn [join]. now rewrite (below_is I e d' De Dd E).
    - rewrite <- join_joined, (join_swap (Some (den I e))), join_joined. now rewrite IH. }
  assert (H : join (top I c) (Some y) = Some y).
  { clear S. induction F as [| e c De F IH]; [reflexivity |]. cbn [within forallb top] in *. apply andb_prop in W as [E W].
    rewrite join_joined, IH by exact W. now apply Each. }
  rewrite S in H. cbn in H. now injection H.
Qed.
Lemma added_is I c cs x y : is_c I c x -> is_cs I cs y -> is_cs I (added c cs) (smaller x y).
Proof.
  intros C H. unfold added. destruct (existsb (fun d => within d c) cs) eqn:E.
  - replace (smaller x y) with y; [exact H |]. symmetry. induction H as [d y D | d cs y z D K IH]; cbn in E.
    + rewrite orb_false_r in E. rewrite <- (within_is I d c y x D C E), smaller_swap. apply smaller_larger.
    + apply orb_prop in E as [E | E].
      * rewrite <- smaller_joined. f_equal. rewrite <- (within_is I d c y x D C E), smaller_swap. apply smaller_larger.
      * rewrite <- smaller_joined, (smaller_swap x), smaller_joined. now rewrite IH.
  - clear E. set (keep := fun d => negb (within c d)).
    assert (K : (filter keep cs = [] /\ smaller x y = x) \/ exists z, is_cs I (filter keep cs) z /\ smaller x z = smaller x y).
    { induction H as [d y D | d cs y z D _ IH]; cbn [filter]; change (keep d) with (negb (within c d)); destruct (within c d) eqn:W; cbn [negb].
      - left. split; auto. rewrite <- (within_is I c d x y C D W). apply smaller_larger.
      - right. exists y. split; auto. now constructor.
      - assert (S : smaller x y = x) by (rewrite <- (within_is I c d x y C D W); apply smaller_larger).
        rewrite <- smaller_joined, S. exact IH.
      - right. destruct IH as [[N S] | (w & K & S)].
        + exists y. rewrite N. split; [now constructor |].
          transitivity (smaller (smaller x z) y); [now rewrite S | now rewrite smaller_joined, (smaller_swap z)].
        + exists (smaller y w). split; [now constructor |].
          transitivity (smaller (smaller x w) y); [now rewrite smaller_joined, (smaller_swap w) |].
          now rewrite S, smaller_joined, (smaller_swap z). }
    destruct K as [[-> ->] | (z & K & <-)]; now constructor.
Qed.
Lemma all_added_is I cs x : is_cs I cs x -> is_cs I (fold_right added [] cs) x.
Proof.
  intros H. induction H as [c x C | c cs x y C _ IH]; cbn [fold_right]; [cbn; now constructor | now apply added_is].
Qed.
Lemma greatest_of_is I c x : is_c I c x -> def I (greatest_of c) /\ den I (greatest_of c) = x.
Proof.
  intros [F S]. revert x S. induction F as [| e c D F IH]; intros x S; [discriminate S |].
  destruct c as [| d c]; [change (Some (den I e) = Some x) in S; injection S as <-; now split |].
  change (join (Some (den I e)) (top I (d :: c)) = Some x) in S. destruct (top I (d :: c)) as [y |] eqn:T; [| cbn in T; now destruct (top I c)].
  destruct (IH y eq_refl) as [D' E]. cbn [join] in S. injection S as <-.
  change (greatest_of (e :: d :: c)) with (Fn greater (Cons e (Cons (greatest_of (d :: c)) Nil))).
  split; [repeat split; auto; discriminate |].
  change (larger (den I e) (den I (greatest_of (d :: c))) = larger (den I e) y). now rewrite E.
Qed.
Lemma num_minus_times (x : A) : times (-1) x = opp x.
Proof. rewrite num_minus. ring. Qed.
(** Expressions are replaced by others, whose greatest is what becomes of the greatest. *)
Section Replaced.
Variables (I : Z -> A) (g : expr -> expr) (G : A -> A).
Hypothesis g_is : forall e, def I e -> def I (g e) /\ den I (g e) = G (den I e).
Hypothesis larger_kept : forall x y, G (larger x y) = larger (G x) (G y).
Hypothesis smaller_kept : forall x y, G (smaller x y) = smaller (G x) (G y).

Lemma replaced_c c x : is_c I c x -> is_c I (fold_right entered [] (map g c)) (G x).
Proof.
  intros [F S]. assert (H : Forall (def I) (fold_right entered [] (map g c)) /\
    top I (fold_right entered [] (map g c)) = option_map G (top I c)).
  { clear S. induction F as [| e c D F [F' S']]; [split; [constructor | reflexivity] |]. destruct (g_is e D) as [D' E].
    destruct (entered_is I (g e) _ D' F') as [F'' S'']. split; [exact F'' |].
    cbn [map fold_right top]. rewrite S'', S', E. destruct (top I c); cbn; now rewrite ?larger_kept. }
  destruct H as [F' S']. split; [exact F' |]. now rewrite S', S.
Qed.
Lemma replaced_cs cs x : is_cs I cs x -> is_cs I (map (fun c => fold_right entered [] (map g c)) cs) (G x).
Proof.
  induction 1 as [c x C | c cs x y C _ IH]; cbn; [constructor; now apply replaced_c |].
  rewrite smaller_kept. constructor; [now apply replaced_c | exact IH].
Qed.
End Replaced.

Lemma of_clauses_is I cs x : is_cs I cs x -> is_p I (of_clauses cs) x.
Proof.
  intros H. assert (General : is_p I (opposite (atom (greatest_of
    (fold_right entered [] (map (fun c => literal (-1) [] (greatest_of c)) cs))))) x).
  { replace x with (opp (opp x)) by ring. apply opposite_is.
    assert (G : is_c I (fold_right entered [] (map (fun c => literal (-1) [] (greatest_of c)) cs)) (opp x)).
    { induction H as [c x C | c cs x y C _ IH]; cbn [map fold_right]; destruct (greatest_of_is I c x C) as [D E];
        destruct (plain_literal_is I (-1) _ D) as [L E']; rewrite E, num_minus_times in E'.
      - cbn [entered existsb filter placed_in]. split; [auto | cbn; now rewrite E'].
      - destruct IH as [F S]. destruct (entered_is I _ _ L F) as [F' S']. split; [exact F' |].
        rewrite S', S, E'. cbn. unfold smaller. now rewrite opp_opp. }
    destruct (greatest_of_is I _ _ G) as [D E]. rewrite <- E. now apply atom_is. }
  unfold of_clauses. destruct cs as [| c [| d cs]]; [exact General | | destruct c as [| [] [| e c]]; exact General].
  clear General. inversion H as [c' x' C | ? ? ? ? ? N]; subst; [| inversion N]. destruct (greatest_of_is I c x C) as [D E].
  assert (Plain : is_p I (atom (greatest_of c)) x) by (rewrite <- E; now apply atom_is).
  destruct c as [| e [| d c]]; try exact Plain; destruct e; try exact Plain.
  destruct C as [_ S]. cbn in S. injection S as <-. apply number_is.
Qed.
Definition both_cs I (yes no : list clause) (x : A) : Prop := is_cs I yes x /\ is_cs I no (opp x).
Lemma of_both_is I yes no x : both_cs I yes no x -> is_p I (of_both yes no) x.
Proof.
  intros [H K]. apply all_added_is, of_clauses_is in H. apply all_added_is, of_clauses_is, opposite_is in K.
  rewrite opp_opp in K. unfold of_both. cbv zeta. destruct (cmp _ _); [exact H | exact H | exact K].
Qed.
Lemma smaller_scaled (k x y : A) : nn k -> smaller (mul k x) (mul k y) = mul k (smaller x y).
Proof.
  intros L. unfold smaller. assert (N : forall z : A, opp (mul k z) = mul k (opp z)) by (intros; ring).
  rewrite !N, scaled_larger by exact L. ring.
Qed.
Lemma in_units_is I k r cs x : 0 <= k -> scales I r -> is_cs I cs x -> is_cs I (in_units k r cs) (scale I k r x).
Proof.
  intros P [O R] H. assert (L : nn (mul (num k) (den_m I r))) by (apply nn_mul; [now apply num_nn | exact R]).
  apply (replaced_cs I (literal k r) (fun x => scale I k r x)); auto.
  - intros e D. now apply literal_is.
  - intros y z. symmetry. now apply scaled_larger.
  - intros y z. symmetry. now apply smaller_scaled.
Qed.
Lemma both_in_units I k r yes no x : 0 <= k -> scales I r -> both_cs I yes no x ->
  both_cs I (in_units k r yes) (in_units k r no) (scale I k r x).
Proof.
  intros P R [Y N]. split; [now apply in_units_is |].
  replace (opp (scale I k r x)) with (scale I k r (opp x)) by ring. now apply in_units_is.
Qed.
Lemma of_units_is I yes no x : both_cs I yes no x -> is_p I (of_units yes no) x.
Proof.
  intros B. unfold of_units. set (u := unit yes). destruct (Qle_bool u 0 || Qeq_bool u 1) eqn:U; [now apply of_both_is |].
  apply orb_false_iff in U as [U _]. apply positive_bool in U.
  assert (L : 0 <= / u) by now apply Qlt_le_weak, Qinv_lt_0_compat.
  pose proof (of_both_is I _ _ _ (both_in_units I (/ u) [] yes no x L (scales_none I) B)) as H.
  replace x with (mul (mul (num u) one) (scale I (/ u) [] x)); [apply pscale_is; [now split | exact H] |]. cbn.
  transitivity (mul (mul (num u) (num (/ u))) x); [ring |]. rewrite <- num_mult.
  rewrite (num_eq A (u * / u) 1) by (apply Qmult_inv_r; now apply positive_apart). rewrite num_1. ring.
Qed.
Definition sure I (f : factor) : Prop := (def I (fst f) /\ ok (den I (fst f)) (snd f)) /\ above (den I (fst f)).
Lemma lowest_power_is I f m : sure I f -> Forall (sure I) m -> Forall (sure I) (lowest_power f m).
Proof.
  intros D. induction 1 as [| g m Dg F IH]; cbn [lowest_power]; [now constructor |].
  destruct (same _ _); [destruct (Qle_bool _ _) |]; now constructor.
Qed.
Lemma denominators_is I m : ok_m I m -> Forall (sure I) (denominators m).
Proof.
  unfold denominators. induction m as [| [e q] m IH]; cbn [filter]; [constructor |]. intros [[D K] O].
  destruct (_ && positive_f _) eqn:C; [| now apply IH]. apply andb_prop in C as [_ C].
  cbn [fold_right]. apply lowest_power_is; [| now apply IH]. split; [now split |]. now apply (positive_f_is In I e q).
Qed.
Lemma inverted_is I m : Forall (sure I) m -> ok_m I m /\ ok_m I (inverted m) /\ above (den_m I m) /\
  mul (den_m I m) (den_m I (inverted m)) = one.
Proof.
  induction 1 as [| [e q] m [[D K] P] F (O & O' & Am & E)].
  { split; [exact Logic.I | split; [exact Logic.I | split; [apply above_one | cbn; ring]]]. }
  change (ok_m I (inverted ((e, q) :: m))) with ((def I e /\ ok (den I e) (- q)) /\ ok_m I (inverted m)).
  change (den_m I (inverted ((e, q) :: m))) with (mul (pw (den I e) (- q)) (den_m I (inverted m))).
  change (den_m I ((e, q) :: m)) with (mul (pw (den I e) q) (den_m I m)). cbn [fst snd] in *.
  split; [now split | split; [split; [split; [exact D | now apply above_ok] | exact O'] | split]].
  { apply above_mul; auto. now apply above_pw. }
  transitivity (mul (mul (pw (den I e) q) (pw (den I e) (- q))) (mul (den_m I m) (den_m I (inverted m)))); [ring |].
  rewrite E, pw_inverse by now apply above_ok. ring.
Qed.
Lemma all_factors_ok I cs x : is_cs I cs x -> ok_m I (all_factors cs).
Proof.
  assert (App : forall m k, ok_m I m -> ok_m I k -> ok_m I (m ++ k)).
  { intros m k O K. now apply (app_is In I m k _ _ (conj O eq_refl) (conj K eq_refl)). }
  assert (One : forall c x, is_c I c x -> ok_m I (flat_map (fun e => flat_map snd (terms e)) c)).
  { intros c y [F _]. induction F as [| e c D F IH]; [exact Logic.I |]. apply App; [| exact IH].
    exact (ok_candidates In I _ _ (terms_is I e D)). }
  induction 1 as [c x C | c cs x y C _ IH]; cbn; [rewrite app_nil_r; now apply (One c x) |].
  apply App; [now apply (One c x) | exact IH].
Qed.
Lemma of_value_is I yes no x : both_cs I yes no x -> is_p I (of_value yes no) x.
Proof.
  intros B. unfold of_value. pose proof (denominators_is I _ (all_factors_ok I yes x (proj1 B))) as S.
  destruct (denominators _) as [| f m]; [now apply of_units_is |].
  destruct (inverted_is I _ S) as (O & O' & Am & E). set (n := f :: m) in *.
  assert (R : scales I (inverted n)).
  { split; [exact O' |]. apply (nn_divided (den_m I n)); try apply Am. rewrite E. apply above_one. }
  pose proof (of_units_is I _ _ _ (both_in_units I 1 (inverted n) yes no x ltac:(discriminate) R B)) as H.
  replace x with (mul (mul (num 1) (den_m I n)) (scale I 1 (inverted n) x)); [apply pscale_is; [now split | exact H] |].
  rewrite num_1. transitivity (mul (mul (den_m I n) (den_m I (inverted n))) x); [ring |]. rewrite E. ring.
Qed.
Lemma only_cs I e x : is_cs I [[e]] x -> den I e = x.
Proof.
  intros H. inversion H as [c' x' [_ S] | ? ? ? ? ? N]; [| inversion N]. cbn in S. now injection S.
Qed.
Lemma times_one (x : A) : times 1 x = x.
Proof. rewrite num_1. ring. Qed.
Lemma both_is I p q x y : is_p I p x -> is_p I q y -> both_cs I (both 1 p q) (both (-1) p q) (larger x y).
Proof.
  intros P Q. destruct (reify_is In I p x P) as [Dp Ep], (reify_is In I q y Q) as [Dq Eq]. unfold both. split; cbn [Qle_bool].
  - rewrite <- (times_one x), <- (times_one y), <- Ep, <- Eq. apply product_cs; now apply plain_clauses_is.
  - replace (opp (larger x y)) with (smaller (opp x) (opp y)) by (unfold smaller; now rewrite !opp_opp).
    rewrite <- Ep, <- Eq, <- !num_minus_times. apply app_cs; now apply plain_clauses_is.
Qed.
Lemma pgreater_is I p q x y : is_p I p x -> is_p I q y -> is_p I (pgreater p q) (fn greater [x; y]).
Proof.
  intros P Q. unfold pgreater. destruct (Nat.leb _ _); [apply held_is; [auto | exact Logic.I] |]. cbv zeta.
  change (fn greater [x; y]) with (larger x y). pose proof (both_is I p q x y P Q) as B.
  destruct (reify_is In I p x P) as [Dp Ep], (reify_is In I q y Q) as [Dq Eq].
  pose proof (all_added_is I _ _ (proj1 B)) as H. apply of_value_is in B.
  destruct (fold_right added [] (both 1 p q)) as [| [| e [| d c]] [| c' cs]]; try exact B.
  destruct (same e (literal 1 [] (reify p))) eqn:E; [| destruct (same e (literal 1 [] (reify q))) eqn:E'; [| exact B]].
  - apply same_eq in E as ->. rewrite <- (only_cs I _ _ H), (proj2 (plain_literal_is I 1 _ Dp)), times_one, Ep. exact P.
  - apply same_eq in E' as ->. rewrite <- (only_cs I _ _ H), (proj2 (plain_literal_is I 1 _ Dq)), times_one, Eq. exact Q.
Qed.

(** *** Rounding *)
Definition round (x : A) : A := fn rounding [x].
Lemma round_opp x : round (opp x) = opp (round x).
Proof. now apply fn_odd. Qed.
Lemma round_larger x y : round (larger x y) = larger (round x) (round y).
Proof. apply rounding_greater. Qed.
Lemma round_smaller x y : round (smaller x y) = smaller (round x) (round y).
Proof. unfold smaller. now rewrite round_opp, round_larger, !round_opp. Qed.
Lemma round_whole x : is_whole x -> round x = x.
Proof. intros [z ->]. apply rounding_whole. Qed.
Lemma rounded_is I e : def I e -> def I (rounded_literal e) /\ den I (rounded_literal e) = round (den I e).
Proof.
  intros D. assert (Plain : forall e, def I e -> def I (Fn rounding (Cons e Nil))) by (intros; repeat split; auto; discriminate).
  unfold rounded_literal. destruct (integral e) eqn:W.
  { split; [exact D |]. symmetry. now apply round_whole, integral_is. }
  destruct (Qle_bool 0 (leading_of e)); [now split; [apply Plain |] |].
  destruct (plain_literal_is I (-1) e D) as [D' E]. destruct (plain_literal_is I (-1) _ (Plain _ D')) as [D'' E''].
  split; [exact D'' |]. rewrite E''. rewrite num_minus_times in *.
  change (opp (round (den I (literal (-1) [] e))) = round (den I e)). rewrite E, round_opp. ring.
Qed.
Lemma rounded_clauses_is I cs x : is_cs I cs x -> is_cs I (rounded_clauses cs) (round x).
Proof. apply replaced_cs; [apply rounded_is | apply round_larger | apply round_smaller]. Qed.
Lemma pround_is I p x : is_p I p x -> is_p I (pround p) (fn rounding [x]).
Proof.
  intros P. destruct (reify_is In I p x P) as [D E]. unfold pround. destruct (integral (reify p)) eqn:W.
  { change (is_p I p (round x)). rewrite round_whole; [exact P |]. rewrite <- E. now apply integral_is. }
  assert (S : is_p I (signed rounding p) (fn rounding [x])) by now apply signed_is.
  assert (B : both_cs I (rounded_clauses (clauses 1 [] (reify p))) (rounded_clauses (clauses (-1) [] (reify p))) (round x)).
  { split; [| rewrite <- round_opp]; apply rounded_clauses_is; rewrite <- E.
    - rewrite <- (times_one (den I (reify p))). now apply plain_clauses_is.
    - rewrite <- num_minus_times. now apply plain_clauses_is. }
  apply of_value_is in B. destruct (clauses 1 [] (reify p)) as [| [| e [| d c]] [| c' cs]]; exact B || exact S.
Qed.

Lemma psettled_is I f p x : settling f = true -> is_p I p x -> is_p I (psettled f p) (fn f [x]).
Proof.
  intros S P. assert (N : f <> log) by (intros ->; discriminate). pose proof (held_one I f p x N P) as H. unfold psettled.
  destruct p as [| [c [| [e q] m]] p]; try exact H. destruct e as [| | | | | | | | | | g l | | |]; try exact H.
  destruct l as [| | | | | a l | | | | | | | |]; try exact H. destruct l; try exact H.
  destruct m; try exact H. destruct p; try exact H. destruct (Qeq_bool c 1 && Qeq_bool q 1 && Z.eqb g f) eqn:C; [| exact H].
  apply andb_prop in C as [C G]. apply andb_prop in C as [C Q]. apply Z.eqb_eq in G as ->. apply Qeq_bool_eq in C, Q.
  destruct P as [O E]. split; [exact O |]. rewrite E. revert E. cbn [Polynomials.den_p Polynomials.den_m].
  change (den I (Fn f (Cons a Nil))) with (fn f [den I a]).
  rewrite (num_eq A _ _ C), (pw_eq A _ _ _ Q), num_1, pw_1. intros <-.
  replace (add (mul one (mul (fn f [den I a]) one)) zero) with (fn f [den I a]) by ring. symmetry. now apply fn_settled.
Qed.

(** *** All functions *)
Lemma direct_is I f ps xs : f <> log -> Forall2 (is_p I) ps xs -> is_p I (direct f ps) (fn f xs).
Proof.
  intros N H. assert (Held : is_p I (held f ps) (fn f xs)).
  { apply held_is; [exact H |]. destruct xs as [| x [| y xs]]; cbn; auto. contradiction. }
  destruct H as [| p x ps xs P [| q y ps' xs' Q [| r z ps'' xs'' R]]]; cbn [direct]; try exact Held.
  - destruct (Z.eqb_spec f 0) as [-> |]; [now apply is_above_is |].
    destruct (Z.eqb_spec f 1) as [-> |]; [now apply is_nothing_is |].
    destruct (Z.eqb_spec f rounding) as [-> |]; [now apply pround_is |].
    destruct (odd f || symmetric f) eqn:S; [now apply signed_is |].
    destruct (settling f) eqn:T; [now apply psettled_is | exact Held].
  - destruct (Z.eqb_spec f greater) as [-> |]; [now apply pgreater_is | exact Held].
Qed.
Lemma each_case_is I (f : list poly -> poly) (g : list A -> A) :
  (forall ps xs, Forall2 (is_p I) ps xs -> is_p I (f ps) (g xs)) ->
  forall ps xs before ys, Forall2 (is_p I) before ys -> Forall2 (is_p I) ps xs ->
  is_p I (each_case f before ps) (g (ys ++ xs)).
Proof.
  intros H. induction ps as [| p ps IH]; intros xs before ys B P; inversion P as [| p' x ps' xs' Px Ps]; subst; cbn [each_case].
  - rewrite app_nil_r. now apply H.
  - apply (by_cases_is I _ (fun x => g (ys ++ x :: xs'))); [| exact Px]. clear p x Px P. intros p x Px.
    replace (ys ++ x :: xs') with ((ys ++ [x]) ++ xs') by now rewrite <- app_assoc.
    apply IH; [| exact Ps]. now apply Forall2_app; [| constructor].
Qed.
Lemma function_is I f ps xs : defined f xs -> Forall2 (is_p I) ps xs -> is_p I (function f ps) (fn f xs).
Proof.
  intros D H. unfold function. destruct (Z.eqb_spec f log) as [-> | N].
  - destruct H as [| p x ps xs P [| q y ps' xs' Q H]]; [apply held_is; auto | | apply held_is; auto].
    apply plog_is; [exact P | now apply D].
  - apply (each_case_is I (direct f) (fn f)) with (before := []) (ys := []); auto.
    intros. now apply direct_is.
Qed.
End Denotation.
